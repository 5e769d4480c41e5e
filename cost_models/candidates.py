"""Estimates memory and time of many configurations at once, as columns of arrays.

Fusion, liveness and the seconds of every kernel are slow to compute. They depend on a traced structure, on when
gradients become new weights, and on the local batch: `memory` and `device_time` are called once for each such point,
however many candidates share it. The mesh, sharded state, accumulation and the host's work are arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.config import Batch, Layout, TrainConfig
from cost_models.errors import ConfigError, WorkloadError
from cost_models.estimate import capacity_of
from cost_models.execution import Origin, check
from cost_models.hardware.cluster import Cluster
from cost_models.memory import DEFAULT_HEADROOM, MemoryCost, memory, sharded
from cost_models.time.cost import TimeCost, TimeParts, figures
from cost_models.time.exchange import DEFAULT_OVERLAP, XlaExchange, state_of
from cost_models.time.roofline import peak_of
from cost_models.time.software import Software
from cost_models.time.step import DeviceTime, device_time, parts_of
from cost_models.workload.workload import Kind, Workload

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]

_TOTALS = frozenset({"total", "total_low", "total_high"})
_COMPONENTS = tuple(item.name for item in fields(MemoryCost) if item.name not in _TOTALS)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Configurations as columns, one row each.

    structures    configurations whose batches do not matter: precision, remat, mesh, layout, backend ...
    structure     (rows,) which of them a row has
    local_batch   (rows,) samples on one device in one micro-step
    accumulation  (rows,) micro-steps an update

    ConfigError for columns that do not fit together.
    """

    structures: tuple[TrainConfig, ...]
    structure: Ints
    local_batch: Ints
    accumulation: Ints

    def __post_init__(self) -> None:
        columns = (self.structure, self.local_batch, self.accumulation)
        if len({column.shape for column in columns}) > 1 or self.structure.ndim != 1:
            shapes = ", ".join(str(column.shape) for column in columns)
            raise ConfigError(f"columns of shapes {shapes}; expected one row for each candidate in all three")
        if not len(self):
            return
        if self.structure.min() < 0 or self.structure.max() >= len(self.structures):
            raise ConfigError(f"a candidate names a structure outside 0..{len(self.structures) - 1}")
        if self.local_batch.min() < 1 or self.accumulation.min() < 1:
            raise ConfigError("a candidate has a local batch or an accumulation below 1; expected whole numbers from 1")

    def __len__(self) -> int:
        return len(self.structure)

    @classmethod
    def grid(
        cls, structures: Sequence[TrainConfig], local_batches: Sequence[int], accumulations: Sequence[int]
    ) -> Candidates:
        """Return every structure with every local batch and every accumulation, in that order of nesting."""
        axes = (range(len(structures)), local_batches, accumulations)
        structure, local, accumulation = (
            column.ravel() for column in np.meshgrid(*(np.asarray(axis, np.int64) for axis in axes), indexing="ij")
        )
        return cls(tuple(structures), structure, local, accumulation)

    @classmethod
    def of(cls, configs: Iterable[TrainConfig]) -> Candidates:
        """Return a list of configurations as columns, in order."""
        numbers: dict[TrainConfig, int] = {}
        rows = [
            (numbers.setdefault(_at(config, 1, 1), len(numbers)), config.batch.local, config.batch.accumulation)
            for config in configs
        ]
        structure, local, accumulation = np.asarray(rows, np.int64).reshape(-1, 3).T
        return cls(tuple(numbers), structure, local, accumulation)

    def config(self, row: int) -> TrainConfig:
        """Return one row as a configuration."""
        structure = self.structures[int(self.structure[row])]
        return _at(structure, int(self.local_batch[row]), int(self.accumulation[row]))


@dataclass(frozen=True, eq=False)
class Table:
    """Memory and time of every candidate. Evidence: analytic.

    memory   (rows,) bytes under the names of `MemoryCost`
    time     (rows,) under the names of `TimeCost`; `bound` is the name of the largest part
    fits     (rows,) whether the upper end of the interval is at most capacity x (1 - headroom)
    """

    candidates: Candidates
    memory: Mapping[str, Ints]
    time: Mapping[str, npt.NDArray[Any]]
    fits: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.candidates)

    def memory_of(self, row: int) -> MemoryCost:
        """Return one row as `memory` does."""
        return MemoryCost(**{name: int(column[row]) for name, column in self.memory.items()})

    def time_of(self, row: int) -> TimeCost:
        """Return one row as `step_time` does."""
        return TimeCost(**{name: column[row].item() for name, column in self.time.items()})


def price(
    workloads: Iterable[Workload],
    candidates: Candidates,
    cluster: Cluster,
    *,
    headroom: float = DEFAULT_HEADROOM,
    overlap: float = DEFAULT_OVERLAP,
) -> Table:
    """Estimate every candidate on `cluster`; each row equals `memory` and `step_time` of its configuration.

    workloads  one for each precision and rematerialization among the structures
    headroom   share of the capacity that must stay free, at least 0 and below 1
    overlap    share of the backward pass behind which gradient all-reduces hide, 0 to 1

    WorkloadError for a structure without a workload; other errors as `estimate`.
    """
    limits = np.array([capacity_of(one, cluster, headroom).usable_bytes for one in candidates.structures], np.int64)
    pricing = _Pricing({Origin.of_workload(one): one for one in workloads}, cluster, overlap)
    points, point_of_row = _points(candidates)
    blocks = [pricing.block(candidates.structures[one], several, batches) for one, several, batches in points]
    columns = _joined(blocks, point_of_row)
    columns["update_seconds"] = columns["update_seconds"] * candidates.accumulation
    return Table(
        candidates=candidates,
        memory={item.name: columns[item.name].astype(np.int64, copy=False) for item in fields(MemoryCost)},
        time={item.name: columns[item.name] for item in fields(TimeCost)},
        fits=columns["total_high"] <= limits[candidates.structure],
    )


def _at(structure: TrainConfig, local_batch: int, accumulation: int) -> TrainConfig:
    return structure.with_(batch=Batch(local_batch, structure.mesh.data, accumulation))


def _points(candidates: Candidates) -> tuple[Iterator[tuple[int, bool, Ints]], Ints]:
    """(structure, whether it accumulates, its local batches) for each that occurs, and the point of each row."""
    batches, batch_of_row = np.unique(candidates.local_batch, return_inverse=True)
    program = 2 * candidates.structure + (candidates.accumulation > 1)
    occurs = np.zeros((2 * len(candidates.structures), len(batches)), np.bool_)
    occurs[program, batch_of_row] = True
    numbers = (np.cumsum(occurs) - 1).reshape(occurs.shape)
    found = ((number // 2, bool(number % 2), batches[row]) for number, row in enumerate(occurs) if row.any())
    return found, numbers[program, batch_of_row]


def _joined(blocks: Sequence[Columns], point_of_row: Ints) -> Columns:
    """Points of all blocks, one after the other, laid out as rows."""
    names = blocks[0] if blocks else dict.fromkeys([item.name for item in (*fields(MemoryCost), *fields(TimeCost))])
    empty = np.zeros(0)
    return {
        name: np.concatenate([block[name] for block in blocks])[point_of_row] if blocks else empty for name in names
    }


@dataclass(frozen=True)
class _Point:
    """Memory and kernels of one local batch."""

    memory: MemoryCost
    device: DeviceTime


class _Pricing:
    """Prices structures; points that several of them share are computed once."""

    def __init__(self, workloads: Mapping[Origin, Workload], cluster: Cluster, overlap: float) -> None:
        self.workloads, self.cluster = workloads, cluster
        self.software = Software(exchange=XlaExchange(overlap))
        self.known: dict[TrainConfig, dict[int, _Point]] = {}

    def block(self, structure: TrainConfig, accumulates: bool, batches: Ints) -> Columns:
        """One structure at these local batches: a column for everything but what counts micro-steps or samples."""
        config = _at(structure, int(batches[0]), 2 if accumulates else 1)
        workload = self._workload(config)
        check(workload, config)
        program = self._program(workload, config)
        known = self.known.setdefault(program, {})
        for batch in (int(batch) for batch in batches):
            if batch not in known:
                at = _at(program, batch, program.batch.accumulation)
                known[batch] = _Point(memory(workload, at, self.cluster), device_time(workload, at, self.cluster))
        points = [known[int(batch)] for batch in batches]
        return self._memory(workload, config, points) | self._time(workload, config, points, batches)

    def _workload(self, config: TrainConfig) -> Workload:
        origin = Origin.of(config)
        if origin not in self.workloads:
            known = ", ".join(map(str, self.workloads)) or "none"
            raise WorkloadError(f"no workload was traced with {origin}; those given: {known}")
        return self.workloads[origin]

    def _program(self, workload: Workload, config: TrainConfig) -> TrainConfig:
        """The configuration that represents all whose devices run the same kernels on the same local batch."""
        # Meshes of two devices and of more differ in communication alone, but for simulated devices and their shares.
        whole = self.cluster.simulated or any(op.kind is Kind.LSTM for op in workload.ops)  # calls on all rows
        mesh = config.mesh if whole else replace(config.mesh, data=min(2, config.mesh.data))
        batch = Batch(1, mesh.data, config.batch.accumulation)
        return replace(config, mesh=mesh, batch=batch, layout=Layout(), steps_per_execution=1)

    def _memory(self, workload: Workload, config: TrainConfig, points: Sequence[_Point]) -> Columns:
        costs = [point.memory for point in points]
        components = {name: np.array([getattr(cost, name) for cost in costs], np.int64) for name in _COMPONENTS}
        below = np.array([cost.total - cost.total_low for cost in costs], np.int64)
        above = np.array([cost.total_high - cost.total for cost in costs], np.int64)
        if config.layout.shard_state and config.mesh.data > 1:
            components = sharded(workload, components, config.mesh.data)
        total = np.sum([components[name] for name in _COMPONENTS], axis=0)
        return {**components, "total": total, "total_low": total - below, "total_high": total + above}

    def _time(self, workload: Workload, config: TrainConfig, points: Sequence[_Point], batches: Ints) -> Columns:
        """Everything of `TimeCost`; an update is of one micro-step until the rows' accumulation is known."""
        device = DeviceTime.stacked([point.device for point in points])
        parts = parts_of(device, state_of(workload), config, self.cluster, self.software)
        parts = TimeParts(*(np.broadcast_to(part, len(batches)) for part in parts.values()))
        peak = peak_of(workload, config, self.cluster)
        return figures(
            parts,
            accumulation=1,
            global_batch=batches * config.mesh.data,
            model_flops=device.model_flops,
            peak_flops_per_second=peak,
        )
