"""Estimates the peak memory of a micro-step on one device by component, and defines whether it fits.

State (parameters, optimizer slots, accumulators ...) is live all the time. Temporaries are those of the kernel at
which most bytes are live, so that the components add up to the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cost_models.config import TrainConfig
from cost_models.errors import ConfigError
from cost_models.execution import check, check_platform, profile_for, schedule_of, updates_of
from cost_models.hardware.cluster import Cluster
from cost_models.parallel.whole_batch import on_whole_batch
from cost_models.validation import raised_as, read_fields, several, text, whole
from cost_models.workload.affine import Affine
from cost_models.workload.lstm import UNCERTAINTY as LSTM_UNCERTAINTY
from cost_models.workload.lstm import lstm_buffers
from cost_models.workload.workload import Kind, OtherBatch, Role, Workload
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.program_code import program_code
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.buffers.schedule import Schedule
from cost_models.xla.profile import Profile
from cost_models.xla.tiling import storage

Bytes = TypeVar("Bytes", int, npt.NDArray[np.int64])
"""Bytes of one configuration, or of many in an array."""

DEFAULT_HEADROOM = 0.08
"""Share of a device's memory that stays free unless a user asks for another one."""

AHEAD = 1
"""Batches that `fit` has on the device beside the one at work, where it looks ahead."""
KEPT_WHILE_VALIDATING = 2
"""Batches of the training that the iterator of an epoch keeps until the next epoch, where `fit` looks ahead."""

_FILLED = 0.4
"""Share of the free memory on the chip at the peak that may have values which are counted in the device's memory."""
_MADE = ("gradients", "weight_copies", "activations", "workspace")
"""Components that the step makes."""
_CODE_UNCERTAINTY = 0.6
"""Share of the estimated code of a TPU's program by which compiled programs differ from it."""
_SMALL_BELOW, _SMALL_ABOVE = 3_000_000, 8_000_000
"""Bytes in a TPU's memory that no rule models: small values and copies in it or not, and code of other kernels."""
_GROUPED = 32
"""The number of largest temporaries among which groups of one shape are looked for."""
_SHARDED = ("parameters", "gradients", "optimizer", "accumulators")


@dataclass(frozen=True)
class MemoryCost:
    """Bytes per device. Every component is a whole number; the components add up to `total`.

    parameters          trainable variables
    non_trainable       moving statistics, random seeds, metrics
    gradients           alive at the peak
    optimizer           slots, averages of weights, learning rate, loss scale
    accumulators        sums of gradients over the micro-steps of an update
    weight_copies       parameters cast to the compute dtype, alive at the peak
    activations         everything else that a micro-step makes, alive at the peak
    workspace           scratch of library kernels at the peak, gaps between the buffers of the compiler's heap, and on
                        TPUs the program itself
    inputs              the batch, and arrays that the program closes over
    other_batches       batches that `fit` holds on the device beside the one at work, as the next one
    collective_buffers  parameters gathered from other devices
    host                memory of the host that the device's program uses
    total_low, total_high   where the compiler's own figure is expected, with the other batches: on TPUs what is on the
                        chip at the peak may be in the device's memory after all, and the other way round where there
                        is room left
    """

    parameters: int
    non_trainable: int
    gradients: int
    optimizer: int
    accumulators: int
    weight_copies: int
    activations: int
    workspace: int
    inputs: int
    other_batches: int
    collective_buffers: int
    host: int
    total: int
    total_low: int
    total_high: int

    def __add__(self, other: MemoryCost) -> MemoryCost:
        """Return the bytes of both at the same time."""
        return MemoryCost(**{name: size + getattr(other, name) for name, size in vars(self).items()})

    def __mul__(self, times: float) -> MemoryCost:
        """Return the bytes of so many of these at the same time."""
        components = {name: round(size * times) for name, size in self.components().items()}
        total = sum(components.values())
        low, high = ((end - self.total) * times for end in (self.total_low, self.total_high))
        return MemoryCost(**components, total=total, total_low=total + round(low), total_high=total + round(high))

    def peak(self, other: MemoryCost) -> MemoryCost:
        """Return the peak of a program that is both of these in turn: the one that needs more at its upper end."""
        fuller = max(self, other, key=lambda cost: (cost.total, cost.total_high))
        low, high = max(self.total_low, other.total_low), max(self.total_high, other.total_high)
        return replace(fuller, total_low=low, total_high=high)

    def components(self) -> dict[str, int]:
        """Return the components, which add up to `total`."""
        return {name: size for name, size in vars(self).items() if not name.startswith("total")}

    def to_dict(self) -> dict[str, int]:
        """Return the keys of `--format json` under `memory.per_device_bytes`, with `other_batches` if there are any."""
        return {name: size for name, size in vars(self).items() if size or name != "other_batches"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MemoryCost:
        """Read what `to_dict` writes, of this version or an older one; other keys are ignored.

        ConfigError for a missing or a wrong figure.
        """
        with raised_as(ConfigError, "the estimate of memory cannot be read: "):
            readers = {item.name: whole for item in fields(cls)}
            return cls(**read_fields({"other_batches": 0, **data}, "memory", readers))

    def with_other_batches(self, held_bytes: int) -> MemoryCost:
        """Return the bytes with batches of so many bytes held on the device in addition."""
        ends = {name: getattr(self, name) + held_bytes for name in ("total", "total_low", "total_high")}
        return replace(self, other_batches=self.other_batches + held_bytes, **ends)


@dataclass(frozen=True)
class Capacity:
    """Memory of one device: the only definition of whether a program fits.

    device_bytes  what the device leaves to programs
    headroom      share of it that must stay free, at least 0 and below 1

    ConfigError for a headroom that is no share.
    """

    device_bytes: int
    headroom: float = DEFAULT_HEADROOM

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise ConfigError(
                f"headroom is {self.headroom:g}; expected a share of the capacity, at least 0 and below 1"
            )

    @property
    def usable_bytes(self) -> int:
        """Capacity less the headroom."""
        return int(self.device_bytes * (1 - self.headroom))

    def fits(self, needed_bytes: int) -> bool:
        """Return whether so many bytes leave the headroom free; of an interval, pass the upper end."""
        return needed_bytes <= self.usable_bytes

    def may_fit(self, least_bytes: int) -> bool:
        """Return whether so many bytes fit without any headroom; of an interval, pass the lower end."""
        return least_bytes <= self.device_bytes


def capacity_bytes(cluster: Cluster, devices: int) -> int:
    """Return the bytes that one of `devices` devices leaves to programs.

    Simulated devices share one memory: those that a program leaves idle give their share to the others.
    """
    usable = cluster.chip.usable_memory_bytes
    return usable * cluster.devices // devices if cluster.simulated else usable


@dataclass(frozen=True)
class LiveTensor:
    """A temporary at the peak: the layer that makes it, what it is for, its shape at this batch, and its bytes."""

    layer: str
    purpose: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "purpose": self.purpose,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class LargestTensors:
    """Temporaries of one shape that are live at the peak, and together the largest such group.

    layer, purpose   of the largest of them
    """

    layer: str
    purpose: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LargestTensors:
        """Read what `to_dict` writes. ConfigError for a missing or a wrong figure."""
        names = {"layer": text, "purpose": text, "dtype": text}
        readers = {**names, "shape": several(whole), "count": whole, "bytes": whole}
        with raised_as(ConfigError, "the largest temporaries cannot be read: "):
            return cls(**read_fields(data, "largest", readers))


def memory(workload: Workload, config: TrainConfig, cluster: Cluster) -> MemoryCost:
    """Estimate the bytes per device of `config` on `cluster`: of the largest batch, where batches of the data differ.

    WorkloadError when the workload does not hold for this configuration (other precision, remat, a model axis, a
    batch it does not hold for).
    """
    step, at = _largest_step(workload, config)
    usual = step_memory(workload, config, cluster)
    return usual if step is workload else usual.peak(step_memory(step, at, cluster))


def step_memory(workload: Workload, config: TrainConfig, cluster: Cluster) -> MemoryCost:
    """Estimate the bytes per device of a micro-step on the usual batch. WorkloadError as `memory`."""
    held = AHEAD * batch_bytes(workload, config, cluster) if looks_ahead(config, cluster) else 0
    return program_memory(workload, config, cluster).with_other_batches(held)


def program_memory(workload: Workload, config: TrainConfig, cluster: Cluster) -> MemoryCost:
    """Estimate the bytes per device of a micro-step's program alone, as its compiler counts them.

    WorkloadError as `memory`.
    """
    check(workload, config)
    check_platform(workload, config, cluster)
    return memory_on(on_whole_batch(workload, config.mesh.data), config, profile_for(config, cluster))


def validation_memory(
    workload: Workload, config: TrainConfig, cluster: Cluster, rows: int | None = None
) -> MemoryCost | None:
    """Estimate the bytes per device while validating; None where no validation step was traced for so many rows.

    The whole batch goes through the forward pass, while the optimizer keeps its state. Where `fit` looks ahead, its
    iterator keeps two batches of the training meanwhile, and the next batch of the validation is on the device too.

    rows  rows at once on all devices; None: those of the script
    """
    other = workload.validation
    if other is None:
        return None
    if rows is not None:
        other = replace(other, rows=rows)
    at = _at(other, config)
    if other.step.batch_exact and at.batch.local != other.step.local_batch:
        return None
    forward = program_memory(other.step, at, cluster)
    training = program_memory(workload, config, cluster)
    kept = {name: getattr(training, name) for name in ("optimizer", "accumulators")}
    more = sum(kept.values()) - sum(getattr(forward, name) for name in kept)
    totals = {name: getattr(forward, name) + more for name in ("total", "total_low", "total_high")}
    cost = replace(forward, **kept, **totals)
    if not looks_ahead(config, cluster):
        return cost
    of_training = KEPT_WHILE_VALIDATING * batch_bytes(workload, config, cluster)
    return cost.with_other_batches(of_training + AHEAD * batch_bytes(other.step, at, cluster))


def looks_ahead(config: TrainConfig, cluster: Cluster) -> bool:
    """Return whether `fit` puts the next batch on the device while a micro-step runs.

    Keras's JAX trainer does so on one device that is no CPU (`JAXEpochIterator._get_iterator` of Keras 3.15). With a
    distribution it places each batch when the step asks for it. TensorFlow and PyTorch prefetch in the memory of the
    host, and copy a batch to the device when its step runs.
    """
    return config.backend == "jax" and cluster.chip.kind != "cpu" and config.mesh.devices == 1


def batch_bytes(workload: Workload, config: TrainConfig, cluster: Cluster) -> int:
    """Return the bytes that one batch takes on a device, without arrays that the program closes over."""
    stored = storage(workload, profile_for(config, cluster)).at(config.batch.local)
    return round(sum(float(stored[end]) for end in workload.inputs if _is_of_batch(workload, end)))


def _is_of_batch(workload: Workload, end: int) -> bool:
    """Return whether an input is of the batch: its first dimension is the number of samples."""
    first = next(iter(workload.tensors[end].shape), Affine(0))
    return not first.constant or (workload.batch_exact and first == Affine(workload.local_batch))


def _largest_step(workload: Workload, config: TrainConfig) -> tuple[Workload, TrainConfig]:
    """Return the step on the largest batch, and the configuration with the rows of that batch."""
    return (workload, config) if workload.largest is None else (workload.largest.step, _at(workload.largest, config))


def _at(other: OtherBatch, config: TrainConfig) -> TrainConfig:
    batch = config.batch
    return config.with_(batch=replace(batch, local=other.local_rows(batch.global_size, batch.data)))


@lru_cache(maxsize=16384)
def memory_on(workload: Workload, config: TrainConfig, profile: Profile) -> MemoryCost:
    """Return the bytes per device under a profile. Chips of a kind share a profile, so that the answer is cached."""
    plan = schedule(workload, profile, updates_of(config), config.batch.local)
    components = _state(workload, profile, config.batch.accumulation)
    components["inputs"] = _inputs(workload, profile, config.batch.local)
    temporary_bytes, at = plan.peak(config.batch.local)
    components |= _at_peak(plan, at, config.batch.local)
    if profile.fusible:
        components["workspace"] += round((plan.packing - 1.0 + profile.unseen) * temporary_bytes)
    code = _code_bytes(plan, profile, config.batch.local)
    components["workspace"] += code
    made = sum(components[name] for name in _MADE)
    components["other_batches"] = components["collective_buffers"] = 0
    if config.layout.shard_state and config.mesh.data > 1:
        components = sharded(workload, components, config.mesh.data)
    total = sum(components.values())
    below, above = (round(share * temporary_bytes) for share in _uncertainty(workload, profile))
    of_lstm = _lstm_bytes(workload, plan, at, config.batch.local)
    below, above = (end + round(share * of_lstm) for end, share in zip((below, above), LSTM_UNCERTAINTY, strict=True))
    there = plan.on_chip_at(config.batch.local, at)
    below += round(_FILLED * max(0, min(profile.on_chip_bytes, temporary_bytes) - there))
    above += there
    if code:
        below += round(_CODE_UNCERTAINTY * code) + _SMALL_BELOW
        above += round(_CODE_UNCERTAINTY * code) + _SMALL_ABOVE
    below = min(below, made)  # state and batch are there in any case
    return MemoryCost(**components, host=0, total=total, total_low=total - below, total_high=total + above)


def _code_bytes(plan: Schedule, profile: Profile, batch: int) -> int:
    """Return the bytes of the program itself, where it takes memory of the device."""
    name = program_code.name
    return int(profile.rules[name](plan.kernels, batch)) if name in profile else 0


def _lstm_bytes(workload: Workload, plan: Schedule, at: int, batch: int) -> float:
    """Return the bytes of buffers of cuDNN's LSTM that are live at the peak, whose sizes only cuDNN knows."""
    buffers = lstm_buffers(workload)
    if not buffers:
        return 0.0
    of_lstm = np.isin(plan.temporaries.tensor, buffers) & plan.alive(at)
    return float(plan.sizes(batch)[of_lstm].sum())


@lru_cache(maxsize=64)
def _uncertainty(workload: Workload, profile: Profile) -> tuple[float, float]:
    """The interval (below, above) as shares of the temporaries, by the kinds of operations in the step."""
    kinds, uncertainty = {op.kind for op in workload.ops}, profile.uncertainty
    if Kind.LOOP in kinds:
        return uncertainty.loops or uncertainty.convolutions
    return uncertainty.convolutions if Kind.CONV in kinds else uncertainty.plain or uncertainty.convolutions


def largest(workload: Workload, config: TrainConfig, cluster: Cluster, count: int = 10) -> tuple[LiveTensor, ...]:
    """Return the largest temporaries at the peak, largest first; those of the largest batch, where batches differ."""
    workload, config = _largest_step(workload, config)
    workload, batch = on_whole_batch(workload, config.mesh.data), config.batch.local
    plan = schedule_of(workload, config, cluster)
    alive = np.flatnonzero(plan.alive(plan.peak(batch)[1]) & (plan.temporaries.tensor >= 0))
    sizes = plan.sizes(batch)
    chosen = alive[np.argsort(-sizes[alive], kind="stable")[:count]]
    return tuple(_describe(plan, int(row), batch, round(float(sizes[row]))) for row in chosen)


def largest_group(workload: Workload, config: TrainConfig, cluster: Cluster) -> LargestTensors | None:
    """Return the shape whose temporaries take the most memory at the peak; None where there are no temporaries."""
    groups: dict[tuple[str, tuple[int, ...]], list[LiveTensor]] = {}
    for tensor in largest(workload, config, cluster, _GROUPED):
        groups.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    if not groups:
        return None
    group = max(groups.values(), key=lambda tensors: sum(one.bytes for one in tensors))
    first = group[0]
    total = sum(one.bytes for one in group)
    return LargestTensors(first.layer, first.purpose, first.dtype, first.shape, len(group), total)


def _describe(plan: Schedule, row: int, batch: int, size: int) -> LiveTensor:
    columns = plan.temporaries
    tensor = plan.tensors[int(columns.tensor[row])]
    return LiveTensor(
        layer=plan.labels[int(columns.birth[row])],
        purpose=str(columns.purpose[row]),
        dtype=tensor.dtype,
        shape=tuple(round(dim.at(batch)) for dim in tensor.shape),
        bytes=size,
    )


@lru_cache(maxsize=64)
def _role_bytes(workload: Workload, profile: Profile, *roles: Role) -> int:
    stored = storage(workload, profile).at(workload.local_batch)
    return round(sum(float(stored[v.tensor]) for v in workload.variables if v.role in roles))


def _state(workload: Workload, profile: Profile, accumulation: int) -> dict[str, int]:
    parameters = _role_bytes(workload, profile, Role.TRAINABLE)
    return {
        "parameters": parameters,
        "non_trainable": _role_bytes(workload, profile, Role.STATE, Role.SEED, Role.METRIC),
        "optimizer": _role_bytes(workload, profile, Role.SLOT, Role.EMA, Role.LOSS_SCALE),
        "accumulators": parameters if accumulation > 1 else 0,
    }


def _inputs(workload: Workload, profile: Profile, batch: int) -> int:
    stored = storage(workload, profile).at(batch)
    return round(sum(float(stored[end]) for end in workload.inputs))


def _at_peak(plan: Schedule, at: int, batch: int) -> dict[str, int]:
    """Bytes that are live at the peak, by purpose."""
    sizes = np.where(plan.alive(at), plan.sizes(batch), 0.0)
    purpose = plan.temporaries.purpose
    return {name.value: round(float(sizes[purpose == name.value].sum())) for name in Purpose}


def sharded(workload: Workload, components: dict[str, Bytes], devices: int) -> dict[str, Bytes]:
    """ZeRO-3 (Rajbhandari et al. 2020, section 5.3): state and gradients split over the data axis. Numbers or arrays.

    Two layers are held whole: the one at work and the next one, gathered ahead; their copies in the compute dtype are
    counted under `weight_copies` where the step makes such copies.
    """
    for name in _SHARDED:
        components[name] = -(-components[name] // devices)
    components["collective_buffers"] += 2 * _largest_layer_bytes(workload)
    return components


@lru_cache(maxsize=64)
def _largest_layer_bytes(workload: Workload) -> int:
    layers: dict[str, float] = {}
    for variable in workload.variables:
        if variable.role is Role.TRAINABLE:
            layer = variable.path.rpartition("/")[0]
            layers[layer] = layers.get(layer, 0) + workload.tensors[variable.tensor].bytes.fixed
    return round(max(layers.values(), default=0))
