"""Seconds of a micro-step: for each kernel the slower of its arithmetic and its memory traffic, and what starting it
costs.

Roofline: Williams, Waterman, Patterson 2009. Kernels are those of `fusion.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.communication import all_gather, all_reduce, reduce_scatter
from cost_models.config import TrainConfig
from cost_models.errors import HardwareError
from cost_models.fusion import Kernel
from cost_models.hardware import Chip, Cluster
from cost_models.liveness import Updates, schedule
from cost_models.memory import check, updates_of
from cost_models.sharding import collectives
from cost_models.targets import Target, target_of
from cost_models.tiles import Storage
from cost_models.workload import Kind, Phase, Role, Tensor, Workload

Floats = npt.NDArray[np.float64]
Seconds = float | Floats
"""Of one configuration, or of many in an array."""

DEFAULT_OVERLAP = 0.5
"""Share of the backward pass behind which gradient all-reduces hide: XLA starts them early, but combines them late."""

LOOP_SECONDS = 1.2e-4
SECONDS_PER_VARIABLE = 3e-6
EAGER_SECONDS = 1.0e-4
"""What the host does beside the chip's `dispatch_seconds`: for a micro-step of `fit`, for each variable that it hands
to the program, and for an operation outside a compiled program, which is traced for its gradient and dispatched from
Python.

Measured with Keras 3.15 and jax 0.10.2 on x86-64 server cores: 126 microseconds a micro-step with 4 variables, 435
with 98, 1,009 with 290; 93 to 120 microseconds an operation.
"""


@dataclass(frozen=True)
class _Dispatch:
    """What another backend's host does: seconds a micro-step of `fit`, and, without a compiler, an operation.

    Operations are counted as JAX traces them. Measured with Keras 3.15, TensorFlow 2.21 and PyTorch 2.13 on x86-64
    server cores, batches of two: networks of 80 to 1,460 operations took 1.1 to 7.9 ms in a TensorFlow graph, and dense
    ones of 80 to 1,200 took 1.8 to 6.1 ms on PyTorch. Rough: trials correct it (`autoplan/corrections.py`).
    """

    micro_step_seconds: float
    operation_seconds: float


_OFF_JAX = {
    "tensorflow": _Dispatch(micro_step_seconds=1.0e-3, operation_seconds=4.0e-6),
    "torch": _Dispatch(micro_step_seconds=1.3e-3, operation_seconds=1.0e-5),
}

_GAIN_FROM_GROUPS = frozenset({"tensorflow"})
"""Backends whose `steps_per_execution` spares the host work. JAX's is a loop in Python; PyTorch has none."""


@dataclass(frozen=True)
class TimeCost:
    """Seconds on one device. compute + memory + communication + overhead = micro_step.

    compute_seconds        kernels whose arithmetic takes longer than their traffic
    memory_seconds         kernels whose traffic takes longer
    communication_seconds  collectives that no computation hides
    overhead_seconds       launches of kernels and the host's work for each program
    mfu                    model FLOPs a second over the chip's peak (PaLM, appendix B); recomputation does not count;
                           None where nobody said how many model FLOPs there are
    bound                  the largest of the four parts
    """

    micro_step_seconds: float
    update_seconds: float
    compute_seconds: float
    memory_seconds: float
    communication_seconds: float
    overhead_seconds: float
    samples_per_second: float
    mfu: float | None
    bound: str

    def to_dict(self) -> dict[str, Any]:
        """The keys of `--format json` under `time`."""
        return asdict(self)


@dataclass(frozen=True)
class DeviceTime:
    """Seconds that the kernels of one micro-step take on a device, and how many are started: numbers or arrays.

    compute_seconds, memory_seconds   as in `TimeCost`, without what accumulation adds
    backward_seconds                  of both, what the backward pass takes
    """

    compute_seconds: Seconds
    memory_seconds: Seconds
    backward_seconds: Seconds
    launches: Seconds


@dataclass(frozen=True)
class KernelTable:
    """Every kernel as a row of numbers: FLOPs are fixed + batch x per_sample, in `dtypes[dtype]`.

    moved_by, moved_tensor, moved_times   that row moves that tensor's bytes so often
    """

    flops_fixed: Floats
    flops_per_sample: Floats
    moved_by: npt.NDArray[np.int64]
    moved_tensor: npt.NDArray[np.int64]
    moved_times: Floats
    stored: Storage
    runs: Floats
    gemm_fixed: Floats
    gemm_per_sample: Floats
    is_gemm: npt.NDArray[np.bool_]
    is_grouped: npt.NDArray[np.bool_]
    is_backward: npt.NDArray[np.bool_]
    dtype: npt.NDArray[np.int64]
    dtypes: tuple[str, ...]

    def bytes_at(self, batch: int) -> Floats:
        """Bytes read and written by each kernel at a local batch, padding included."""
        sizes = self.stored.at(batch)[self.moved_tensor] * self.moved_times
        return np.asarray(np.bincount(self.moved_by, sizes, len(self.runs)), np.float64)


def step_time(
    workload: Workload, config: TrainConfig, cluster: Cluster, *, overlap: float = DEFAULT_OVERLAP
) -> TimeCost:
    """Seconds of one micro-step and one update.

    overlap  share of the backward pass behind which gradient all-reduces hide, 0 to 1

    WorkloadError when the workload says nothing about this configuration; HardwareError when the chip publishes no
    rate at all.
    """
    check(workload, config)
    parts = parts_of(workload, config, cluster, device_time(workload, config, cluster), overlap)
    of_each = {name: float(seconds) for name, seconds in parts.items()}
    seconds = sum(of_each.values())
    return TimeCost(
        micro_step_seconds=seconds,
        update_seconds=seconds * config.batch.accumulation,
        compute_seconds=of_each["compute"],
        memory_seconds=of_each["memory"],
        communication_seconds=of_each["communication"],
        overhead_seconds=of_each["overhead"],
        samples_per_second=config.batch.global_size / seconds,
        mfu=workload.model_flops.at(config.batch.local) / (seconds * peak_of(config, cluster)),
        bound=max(of_each, key=lambda name: of_each[name]),
    )


def device_time(workload: Workload, config: TrainConfig, cluster: Cluster) -> DeviceTime:
    """What a device spends in the kernels of one micro-step: of the mesh, the batches' sizes matter and no more."""
    target = target_of(cluster.chip.kind, config.jit_compile, config.backend)
    table = kernel_table(workload, target, updates_of(config))
    compute, traffic = kernel_seconds(table, config, cluster, target)
    slower = np.maximum(compute, traffic)
    of_compute = float(slower[compute >= traffic].sum())
    return DeviceTime(
        compute_seconds=of_compute,
        memory_seconds=float(slower.sum()) - of_compute,
        backward_seconds=float(slower[table.is_backward].sum()),
        launches=float(table.runs.sum()),
    )


def parts_of(
    workload: Workload, config: TrainConfig, cluster: Cluster, device: DeviceTime, overlap: float
) -> dict[str, Seconds]:
    """Seconds of a micro-step's four parts. Where the figures of `device` are arrays, so are the answers."""
    memory_seconds = device.memory_seconds + _accumulation_seconds(workload, config, cluster)
    gradients, statistics = _communication(workload, config, cluster)
    communication = np.maximum(0.0, gradients - overlap * device.backward_seconds) + statistics
    busy = device.compute_seconds + memory_seconds + communication
    return {
        "compute": device.compute_seconds,
        "memory": memory_seconds,
        "communication": communication,
        "overhead": overhead_of(workload, device.launches, busy, config, cluster),
    }


def peak_of(config: TrainConfig, cluster: Cluster) -> float:
    """FLOP/s of a device at work in the compute dtype: the denominator of MFU."""
    return peak_rate(cluster.chip, config.precision.compute_dtype) * share_of(config, cluster)


def peak_rate(chip: Chip, dtype: str) -> float:
    """FLOP/s of products in a dtype. Where none is published: float32's, halved for each doubling of the width beyond
    it.

    HardwareError when float32's is unknown too.
    """
    rates = chip.peak_flops_per_second
    if dtype in rates:
        return rates[dtype]
    if "float32" not in rates:
        known = ", ".join(rates) or "none"
        raise HardwareError(
            f"{chip.name} has no peak rate for {dtype} or float32 (known: {known}); add one to its description"
        )
    return rates["float32"] / (2.0 if dtype in ("float64", "complex64") else 1.0)


def share_of(config: TrainConfig, cluster: Cluster) -> float:
    """Simulated devices are slices of one processor; a mesh that leaves some idle gets their share too."""
    return cluster.devices / config.mesh.devices if cluster.simulated else 1.0


def kernel_seconds(table: KernelTable, config: TrainConfig, cluster: Cluster, target: Target) -> tuple[Floats, Floats]:
    """(seconds of arithmetic, seconds of memory traffic) of each row, however often it runs."""
    batch, chip = config.batch.local, cluster.chip
    share = share_of(config, cluster)
    flops = (table.flops_fixed + batch * table.flops_per_sample) * table.runs
    moved = table.bytes_at(batch) * table.runs
    rates = np.array([peak_rate(chip, dtype) for dtype in table.dtypes])[table.dtype] * share
    achieved = 1.0 if cluster.local else target.product_efficiency
    filled = _filling(table.gemm_fixed + batch * table.gemm_per_sample, target)
    efficiency = np.where(table.is_gemm, achieved * filled, target.vector_efficiency)
    thin = table.is_grouped & (table.gemm_fixed[:, 2] < target.product_tile[1])
    efficiency[thin] = target.thin_efficiency
    return flops / (rates * efficiency), moved / _bandwidth(config, cluster)


def _bandwidth(config: TrainConfig, cluster: Cluster) -> float:
    """Bytes a second that long streams reach."""
    achieved = 1.0 if cluster.local else target_of(cluster.chip.kind).bandwidth_efficiency
    return cluster.chip.memory_bytes_per_second * share_of(config, cluster) * achieved


def _filling(gemm: Floats, target: Target) -> Floats:
    """Share of the matrix unit that a (groups, m, n, k) product fills: each dimension is rounded up to whole tiles."""
    tiles = np.asarray(target.product_tile, np.float64)
    sizes = np.maximum(gemm[:, 1:], 1.0)
    return np.asarray((sizes / (np.ceil(sizes / tiles) * tiles)).prod(axis=1), np.float64)


def _communication(workload: Workload, config: TrainConfig, cluster: Cluster) -> tuple[float, float]:
    """Seconds of what the backward pass may hide (gradients and weights), and of statistics, which nothing hides."""
    devices = config.mesh.data
    if devices == 1:
        return 0.0, 0.0
    needed = collectives(workload)
    if config.layout.shard_state:  # ZeRO-3: parameters gathered forward and backward, gradients scattered
        gathers = 2 * all_gather(workload.variable_bytes(Role.TRAINABLE), cluster, devices).seconds
        gradients = gathers + reduce_scatter(needed.gradient_bytes, cluster, devices).seconds
    else:
        gradients = all_reduce(needed.gradient_bytes, cluster, devices).seconds
    statistics = sum(count * all_reduce(size, cluster, devices).seconds for size, count in needed.statistics_bytes)
    return gradients, statistics


def overhead_of(
    workload: Workload, launches: Seconds, device_seconds: Seconds, config: TrainConfig, cluster: Cluster
) -> Seconds:
    """Launches, and the host's work as far as the device has to wait for it. Numbers or arrays."""
    chip, target = cluster.chip, target_of(cluster.chip.kind)
    launching = launches * chip.kernel_launch_seconds
    elsewhere = _OFF_JAX.get(config.backend)
    if elsewhere is not None:
        grouped = config.steps_per_execution if config.backend in _GAIN_FROM_GROUPS else 1
        operations = 0 if config.jit_compile else workload.dispatches
        return launching + elsewhere.micro_step_seconds / grouped + operations * elsewhere.operation_seconds
    if not config.jit_compile:
        return launching + workload.dispatches * (chip.dispatch_seconds + EAGER_SECONDS)
    host = chip.dispatch_seconds + LOOP_SECONDS + SECONDS_PER_VARIABLE * len(workload.variables)
    if not target.host_apart:
        return launching + host
    # The host prepares the next micro-step while the device works.
    return launching + np.maximum(chip.dispatch_seconds, host - device_seconds)


def _accumulation_seconds(workload: Workload, config: TrainConfig, cluster: Cluster) -> float:
    """Traffic that accumulation adds: gradients and accumulators, and the choice between old and new state."""
    if config.batch.accumulation == 1:
        return 0.0
    parameters = workload.variable_bytes(Role.TRAINABLE)
    moved = 3 * parameters + 2 * (parameters + workload.variable_bytes(Role.SLOT))
    return moved / _bandwidth(config, cluster)


@lru_cache(maxsize=256)
def kernel_table(workload: Workload, target: Target, updates: Updates) -> KernelTable:
    """The kernels of a micro-step as rows, bodies of loops with how often they run."""
    rows: list[tuple[Kernel, float]] = []
    plan = schedule(workload, target, updates)
    _flatten(plan.kernels, 1.0, rows)
    moved = [
        (row, tensor, times) for row, (kernel, _) in enumerate(rows) for tensor, times in _traffic(plan.tensors, kernel)
    ]
    gemm = np.zeros((len(rows), 4)), np.zeros((len(rows), 4))
    for row, (kernel, _) in enumerate(rows):
        for column, size in enumerate(kernel.op.gemm):
            gemm[0][row, column], gemm[1][row, column] = size.fixed, size.per_sample
    arithmetic = [_rate_dtype(plan.tensors, kernel) for kernel, _ in rows]
    dtypes = tuple(sorted(set(arithmetic)))
    return KernelTable(
        flops_fixed=np.array([kernel.flops.fixed for kernel, _ in rows], np.float64),
        flops_per_sample=np.array([kernel.flops.per_sample for kernel, _ in rows], np.float64),
        moved_by=np.array([row for row, _, _ in moved], np.int64),
        moved_tensor=np.array([tensor for _, tensor, _ in moved], np.int64),
        moved_times=np.array([times for _, _, times in moved], np.float64),
        stored=plan.stored,
        runs=np.array([runs for _, runs in rows], np.float64),
        gemm_fixed=gemm[0],
        gemm_per_sample=gemm[1],
        is_gemm=np.array([bool(kernel.op.gemm) for kernel, _ in rows], np.bool_),
        is_grouped=np.array([kernel.op.kind is Kind.CONV and _groups(kernel) > 1 for kernel, _ in rows], np.bool_),
        is_backward=np.array([kernel.op.phase is Phase.BACKWARD for kernel, _ in rows], np.bool_),
        dtype=np.array([dtypes.index(name) for name in arithmetic], np.int64),
        dtypes=dtypes,
    )


def _groups(kernel: Kernel) -> float:
    return kernel.op.gemm[0].fixed if kernel.op.gemm else 1.0


def _flatten(kernels: Sequence[Kernel], runs: float, rows: list[tuple[Kernel, float]]) -> None:
    for kernel in kernels:
        if kernel.body:
            _flatten(kernel.body, runs * kernel.op.repeat, rows)
        else:
            rows.append((kernel, runs))


def _traffic(tensors: Sequence[Tensor], kernel: Kernel) -> list[tuple[int, float]]:
    """(tensor, how often as many bytes as it has are moved)."""
    picked = dict(kernel.picked)
    reads = [picked.get(read, read) for read in kernel.reads]
    if kernel.op.kind is Kind.SCATTER:
        # In place: what is scattered is read, and as much of the target is read and written back.
        written = [tensors[write].shape for write in kernel.writes]
        scattered = [(read, 3.0) for read in reads if tensors[read].shape not in written]
        return scattered or [(read, 2.0) for read in reads]
    return [(end, 1.0) for end in (*reads, *kernel.writes)]


def _rate_dtype(tensors: Sequence[Tensor], kernel: Kernel) -> str:
    dtype = tensors[kernel.op.reads[0]].dtype if kernel.op.gemm and kernel.op.reads else "float32"
    return dtype if "float" in dtype else "float32"
