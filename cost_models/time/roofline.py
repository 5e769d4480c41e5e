"""Seconds of a micro-step: for each kernel the slower of its arithmetic and its memory traffic, and what starting it
costs.

Roofline: Williams, Waterman, Patterson 2009. Kernels are those of `fusion.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.config import TrainConfig
from cost_models.errors import ConfigError, HardwareError
from cost_models.execution import check, target_for, updates_of
from cost_models.hardware.cluster import Chip, Cluster
from cost_models.hardware.efficiency import Efficiency, efficiency_of
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter, slowest_of
from cost_models.parallel.data_parallel import collectives
from cost_models.time.cpu import processor_seconds
from cost_models.time.eager_torch import library_kernels
from cost_models.time.gemm import product_flops_share
from cost_models.time.kernels import AttentionRows, KernelTable, kernel_table
from cost_models.time.page_faults import paging_seconds
from cost_models.validation import Reader, number, optional, raised_as, read_fields, text
from cost_models.workload.workload import Role, Workload
from cost_models.xla.target import library_target, target_of

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
Python. A machine at hand has its own (`Chip.host_micro_step_seconds`).

Measured with Keras 3.15 and jax 0.10.2 on x86-64 server cores: 126 microseconds a micro-step with 4 variables, 435
with 98, 1,009 with 290; 93 to 120 microseconds an operation.
"""


@dataclass(frozen=True)
class _Dispatch:
    """What another backend's host does: seconds a micro-step of `fit`, and, without a compiler, an operation.

    Operations are counted as JAX traces them. Measured with Keras 3.15, TensorFlow 2.21 and PyTorch 2.13 on x86-64
    server cores, batches of two: networks of 80 to 1,460 operations took 1.1 to 7.9 ms in a TensorFlow graph, and dense
    ones of 80 to 1,200 took 1.8 to 6.1 ms on PyTorch. Rough: trials correct it.
    """

    micro_step_seconds: float
    operation_seconds: float


_OFF_JAX = {
    "tensorflow": _Dispatch(micro_step_seconds=1.0e-3, operation_seconds=4.0e-6),
    "torch": _Dispatch(micro_step_seconds=1.3e-3, operation_seconds=1.0e-5),
}

_MINIMAL_FILTERING = 2.25
"""How many times fewer multiplications 3 x 3 convolutions need as F(2x2, 3x3) (Lavin & Gray 2015, arXiv 1509.09308,
section 4). Libraries work out float32 ones so where matrix units do not take float32: on GPUs before Ampere."""

_TF32_FROM = "bfloat16"
"""GPUs that calculate in it are those from Ampere on, whose matrix units take float32, too."""

_GAIN_FROM_GROUPS = frozenset({"tensorflow"})
"""Backends whose `steps_per_execution` spares the host work. JAX's is a loop in Python; PyTorch has none."""


@dataclass(frozen=True)
class TimeCost:
    """Seconds on one device. compute + memory + communication + overhead = micro_step.

    compute_seconds        kernels whose arithmetic takes longer than their traffic
    memory_seconds         kernels whose traffic takes longer, and pages that a processor's kernel has to make anew
    communication_seconds  collectives that no computation hides, and waiting for the slowest device
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
        """Return the keys of `--format json` under `time`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimeCost:
        """Read what `to_dict` writes; other keys are ignored. ConfigError for a missing or a wrong figure."""
        readers: dict[str, Reader] = {item.name: number for item in fields(cls)}
        readers |= {"mfu": optional(number), "bound": text}
        with raised_as(ConfigError, "the estimate of time cannot be read: "):
            return cls(**read_fields(data, "time", readers))


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
        mfu=workload.model_flops.at(config.batch.local) / (seconds * peak_of(workload, config, cluster)),
        bound=max(of_each, key=lambda name: of_each[name]),
    )


def device_time(workload: Workload, config: TrainConfig, cluster: Cluster) -> DeviceTime:
    """What a device spends in the kernels of one micro-step: of the mesh, the batches' sizes matter and no more."""
    program, target = workload, target_for(config, cluster)
    if config.backend == "torch" and not config.jit_compile and cluster.chip.kind == "gpu":
        program, target = library_kernels(workload), library_target(cluster.chip.kind)
    table = kernel_table(program, target, updates_of(config), config.batch.local)
    compute, traffic = kernel_seconds(table, config, cluster)
    slower = slower_of(compute, traffic, efficiency_of(cluster))
    of_compute = float(slower[compute >= traffic].sum())
    return DeviceTime(
        compute_seconds=of_compute,
        memory_seconds=float(slower.sum()) - of_compute + paging_seconds(workload, config, cluster),
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
    if cluster.chip.kind == "gpu":  # all wait for the slowest
        working = device.compute_seconds + memory_seconds
        communication = communication + working * (slowest_of(config.mesh.devices) - 1)
    busy = device.compute_seconds + memory_seconds + communication
    return {
        "compute": device.compute_seconds,
        "memory": memory_seconds,
        "communication": communication,
        "overhead": overhead_of(workload, device.launches, busy, config, cluster),
    }


def peak_of(workload: Workload, config: TrainConfig, cluster: Cluster) -> float:
    """FLOP/s of a device at work in the compute dtype: the denominator of MFU.

    JAX calculates float64 in float32 unless it is told otherwise (`jax_enable_x64`), and its step then has no float64.
    """
    dtype = config.precision.compute_dtype
    if dtype == "float64" and config.backend == "jax" and all(one.dtype != dtype for one in workload.tensors):
        dtype = "float32"
    return peak_rate(cluster.chip, dtype) * share_of(config, cluster)


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


def kernel_seconds(
    table: KernelTable,
    config: TrainConfig,
    cluster: Cluster,
    efficiency: Efficiency | None = None,
    *,
    fused_attention: bool | None = None,
) -> tuple[Floats, Floats]:
    """(seconds of arithmetic, seconds of memory traffic) of each row, however often it runs.

    efficiency       None takes that of the cluster's chip
    fused_attention  None asks whether the backend runs it fused
    """
    efficiency = efficiency or efficiency_of(cluster)
    batch, chip, share = config.batch.local, cluster.chip, share_of(config, cluster)
    fused = runs_fused(table, config, cluster) if fused_attention is None else fused_attention
    moved = table.bytes_at(batch, fused_attention=fused) * table.runs
    flops = (table.flops_fixed + batch * table.flops_per_sample) * table.runs
    peaks = np.array([peak_rate(chip, dtype) for dtype in table.dtypes])[table.dtype]
    if chip.kind == "cpu":
        on_it_all = processor_seconds(table, batch, moved, peaks, chip, efficiency)
        return on_it_all[0] / share, on_it_all[1] / share
    gemm = table.gemm_at(batch)
    memory_rate = chip.memory_bytes_per_second
    peaks = _as_the_backend_calculates(peaks, table, config, efficiency)
    vector = efficiency.vector_operations_per_second or peak_rate(chip, "float32") * efficiency.vector_share
    rates = np.full(len(flops), vector)
    at, like = table.products
    share_of_peak = product_flops_share(gemm[at], peaks[at], table.item_bytes[at], memory_rate, efficiency)
    rates[table.is_gemm] = (peaks[at] * share_of_peak)[like]
    if chip.kind == "gpu" and not _takes_float32(chip):
        rates[table.is_minimal & (table.item_bytes == 4)] *= _MINIMAL_FILTERING
    thin = table.is_grouped & (table.gemm_fixed[:, 2] < efficiency.min_matrix_unit_channels)
    widths = table.gemm_fixed[thin, 2]
    rates[thin] = efficiency.grouped_conv_flops_per_second(
        peaks[thin], table.item_bytes[thin], widths, table.is_backward[thin]
    )
    if fused and table.attention is not None:
        flops, rates = _fused(table.attention, gemm, flops, rates, peaks, efficiency)
    compute, traffic = flops / (rates * share), moved / (memory_rate * share * efficiency.stream_share)
    if _takes_float32(chip) and table.is_convolution.any():
        operands, _ = table.transposed_bytes(batch)  # kernels for TF32 write channels first themselves
        stream = memory_rate * share * efficiency.stream_share
        transposing = np.where(table.item_bytes == 4, operands / stream, 0.0)
        return compute + transposing, traffic + transposing
    return compute, traffic


def _takes_float32(chip: Chip) -> bool:
    """Whether a GPU's matrix units take float32, as TF32: of convolutions those with channels last.

    XLA:GPU lays out float32 images with channels first on every GPU, and those of 16 bits with channels last from Volta
    on (`gpu_layout_assignment.cc`; jax 0.10.2 compiled for an A100 does); PyTorch holds them first unless told.
    """
    return chip.kind == "gpu" and _TF32_FROM in chip.peak_flops_per_second


def _as_the_backend_calculates(
    peaks: Floats, table: KernelTable, config: TrainConfig, efficiency: Efficiency
) -> Floats:
    """Peaks of products by the backend's default for float32: PyTorch keeps its matrix products off TF32, not its
    convolutions (`torch.backends.cuda.matmul.allow_tf32`, False since 1.12); JAX and TensorFlow take TF32 for both."""
    if config.backend != "torch" or not efficiency.cores:
        return peaks
    exact = table.is_gemm & ~table.is_convolution & (table.item_bytes == 4)
    return np.where(exact, np.minimum(peaks, 2 * efficiency.vector_operations_per_second), peaks)


def runs_fused(table: KernelTable, config: TrainConfig, cluster: Cluster) -> bool:
    """Whether JAX replaces Keras's attention by one kernel: TPUs always, GPUs from Ampere on in 16 bits.

    Keras 3.15, `ops.dot_product_attention` with `flash_attention=None`; chips that calculate in bfloat16 are those
    from Ampere on.
    """
    if table.attention is None or not table.attention.fusible or config.backend != "jax" or cluster.local:
        return False
    half = config.precision.compute_dtype in ("float16", "bfloat16")
    kind = cluster.chip.kind
    return kind == "tpu" or (kind == "gpu" and half and "bfloat16" in cluster.chip.peak_flops_per_second)


def _fused(
    rows: AttentionRows, gemm: Floats, flops: Floats, rates: Floats, peaks: Floats, efficiency: Efficiency
) -> tuple[Floats, Floats]:
    """(FLOPs, FLOP/s) where attention is one kernel: its backward pass makes the scores again, a fifth product beside
    four, and of masked pairs whole blocks are skipped."""
    length = np.maximum(gemm[:, 1:].max(axis=1, initial=1.0), 1.0)
    head = np.maximum(gemm[:, 1:].min(axis=1, initial=np.inf), 1.0)
    block = min(n for _, n in efficiency.tiles)
    needed = np.minimum(1.0, (length + block) / (2 * length)) if rows.causal else np.ones(len(flops))
    worked = np.where(rows.vector, 0.0, flops)
    worked = np.where(rows.forward, flops * needed, np.where(rows.backward, 1.25 * flops * needed, worked))
    peak = peaks[rows.forward | rows.backward].max(initial=0.0)  # operands are narrow, if scores are not
    forward, backward = (peak * share for share in efficiency.attention.shares(length, head, causal=rows.causal))
    return worked, np.where(rows.forward, forward, np.where(rows.backward, backward, rates))


def slower_of(compute: Floats, traffic: Floats, efficiency: Efficiency) -> Floats:
    """Seconds of each row: the longer of both, and what of the shorter one does not hide behind it."""
    return np.maximum(compute, traffic) + (1 - efficiency.overlap) * np.minimum(compute, traffic)


def _bandwidth(config: TrainConfig, cluster: Cluster) -> float:
    """Bytes a second that long streams reach."""
    reached = efficiency_of(cluster)
    return (
        cluster.chip.memory_bytes_per_second
        * share_of(config, cluster)
        * reached.stream_share
        * reached.cache_curve[-1][1]
    )


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
    loop, a_variable = chip.host_micro_step_seconds, chip.host_variable_seconds
    host = chip.dispatch_seconds + (LOOP_SECONDS if loop is None else loop)
    host += (SECONDS_PER_VARIABLE if a_variable is None else a_variable) * len(workload.variables)
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
