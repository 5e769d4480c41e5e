"""Estimates the seconds of arithmetic and of memory traffic of each kernel (the roofline model).

Roofline: Williams, Waterman, Patterson 2009. The profile of a kind of device says how its kernels reach their rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.config import TrainConfig
from cost_models.errors import HardwareError
from cost_models.execution import device_share
from cost_models.hardware.cluster import Chip, Cluster
from cost_models.hardware.efficiency import Efficiency, efficiency_of
from cost_models.time.cpu import cpu_seconds
from cost_models.time.gemm import product_flops_share
from cost_models.time.gpu import (
    attention_kernels,
    fused_attention,
    lstm_rates,
    peaks_of_exact_products,
    takes_float32,
    transposing_seconds,
    with_minimal_filtering,
    with_narrow_convolutions,
)
from cost_models.time.kernels import KernelTable
from cost_models.time.software import KERAS, Software
from cost_models.workload.workload import Workload
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64] | npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KernelWork:
    """The kernels of a micro-step on one device, as arithmetic sees them: one value a row of the table.

    moved_bytes    read and written, however often the row runs
    flops          however often the row runs
    peaks          FLOP/s of products in the row's dtype
    fuses          whether the software runs attention of several kernels as one
    """

    table: KernelTable
    batch: int
    chip: Chip
    efficiency: Efficiency
    software: Software
    moved_bytes: Floats
    flops: Floats
    peaks: Floats
    fuses: bool


@dataclass(frozen=True)
class DeviceProfile:
    """How a kind of device runs kernels.

    seconds            (seconds of arithmetic, seconds of memory traffic) of each row on the whole chip
    layer_kernels      PyTorch without a compiler has a kernel for each layer and pass
    waits_for_slowest  devices of one step differ in speed, and all wait for the slowest
    """

    seconds: Callable[[KernelWork], tuple[Floats, Floats]]
    layer_kernels: bool = False
    waits_for_slowest: bool = False


def profile_of(chip: Chip) -> DeviceProfile:
    """Return the profile of a chip's kind."""
    return _PROFILES[chip.kind]


def kernel_seconds(
    table: KernelTable,
    config: TrainConfig,
    cluster: Cluster,
    efficiency: Efficiency | None = None,
    software: Software = KERAS,
) -> tuple[Floats, Floats]:
    """Return (seconds of arithmetic, seconds of memory traffic) of each row, however often it runs.

    efficiency  None takes that of the cluster's chip
    """
    efficiency = efficiency or efficiency_of(cluster)
    batch, chip, share = config.batch.local, cluster.chip, device_share(config, cluster)
    fuses = software.fused_attention and table.attention is not None and software.applies("fused-attention")
    peaks = np.array([peak_rate(chip, dtype) for dtype in table.dtypes])[table.dtype]
    exact = config.backend == "torch" if software.exact_float32 is None else software.exact_float32
    exact = exact and software.applies("float32-gemms-off-tf32")
    kernels = KernelWork(
        table=table,
        batch=batch,
        chip=chip,
        efficiency=efficiency,
        software=software,
        moved_bytes=table.bytes_at(batch, fused_attention=fuses) * table.runs,
        flops=table.flops_at(batch),
        peaks=peaks_of_exact_products(peaks, table, efficiency) if exact else peaks,
        fuses=fuses,
    )
    compute, traffic = profile_of(chip).seconds(kernels)
    return compute / share, traffic / share


def row_seconds(compute: Floats, traffic: Floats, efficiency: Efficiency, software: Software = KERAS) -> Floats:
    """Return the seconds of each row: the longer of both, and what of the shorter one does not hide behind it."""
    longer = np.maximum(compute, traffic)
    return longer + unhidden_seconds(compute, traffic, efficiency) if software.applies("partial-overlap") else longer


@rule("partial-overlap", "GEMMs timed beside their traffic, sources in devices/efficiency.yaml")
def unhidden_seconds(compute: Floats, traffic: Floats, efficiency: Efficiency) -> Floats:
    """Return the seconds of the shorter of arithmetic and traffic that do not hide behind the longer one."""
    return (1 - efficiency.overlap) * np.minimum(compute, traffic)


def peak_of(workload: Workload, config: TrainConfig, cluster: Cluster) -> float:
    """Return the FLOP/s of a device at work in the compute dtype: the denominator of MFU.

    JAX calculates float64 in float32 unless its option `jax_enable_x64` is set, and its step then has no float64.
    """
    dtype = config.precision.compute_dtype
    if dtype == "float64" and config.backend == "jax" and all(one.dtype != dtype for one in workload.tensors):
        dtype = "float32"
    return peak_rate(cluster.chip, dtype) * device_share(config, cluster)


def peak_rate(chip: Chip, dtype: str) -> float:
    """Return the FLOP/s of products in a dtype.

    Where none is published: float32's, halved for each doubling of the width beyond it. HardwareError when float32's is
    unknown too.
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


def _on_cpu(kernels: KernelWork) -> tuple[Floats, Floats]:
    return cpu_seconds(
        kernels.table,
        kernels.batch,
        kernels.moved_bytes,
        kernels.peaks,
        kernels.chip,
        kernels.efficiency,
        kernels.software,
    )


def _on_tpu(kernels: KernelWork) -> tuple[Floats, Floats]:
    return _with_rates(kernels, _rates(kernels))


def _on_gpu(kernels: KernelWork) -> tuple[Floats, Floats]:
    table, chip, applies = kernels.table, kernels.chip, kernels.software.applies
    rates = _rates(kernels)
    if not takes_float32(chip) and applies("minimal-filtering"):
        rates = with_minimal_filtering(rates, table)
    compute, traffic = _with_rates(kernels, rates)
    if takes_float32(chip) and table.convolution.is_convolution.any() and applies("tf32-transposes"):
        stream = chip.memory_bytes_per_second * kernels.efficiency.stream_share
        transposing = transposing_seconds(table, kernels.batch, stream)
        compute, traffic = compute + transposing, traffic + transposing
    return compute, traffic


def _rates(kernels: KernelWork) -> Floats:
    """FLOP/s of each row: GEMMs by their shape, everything else on vector units."""
    table, peaks, efficiency, chip = kernels.table, kernels.peaks, kernels.efficiency, kernels.chip
    gemm = table.gemm.at(kernels.batch)
    vector = efficiency.vector_operations_per_second or peak_rate(chip, "float32") * efficiency.vector_share
    rates = np.full(len(kernels.flops), vector)
    at, like = table.distinct_gemms
    shares = _product_share(kernels, gemm[at], at)
    rates[table.gemm.is_gemm] = (peaks[at] * shares)[like]
    return rates


def _product_share(kernels: KernelWork, gemm: Floats, rows: Rows) -> Floats:
    """Share of the peak that products of these sizes reach, each in the dtype of its row."""
    return product_flops_share(
        gemm,
        kernels.peaks[rows],
        kernels.table.item_bytes[rows],
        kernels.chip.memory_bytes_per_second,
        kernels.efficiency,
        kernels.software.applies,
    )


def _with_rates(kernels: KernelWork, rates: Floats) -> tuple[Floats, Floats]:
    """Seconds of each row, after narrow convolutions and fused attention got rates of their own."""
    table, peaks, efficiency, applies = kernels.table, kernels.peaks, kernels.efficiency, kernels.software.applies
    flops = kernels.flops
    if applies("narrow-grouped-convolutions"):
        rates = with_narrow_convolutions(rates, table, peaks, efficiency)
    gemm = table.gemm.at(kernels.batch)
    if table.lstm.rows.any():
        rates = lstm_rates(table.lstm, gemm, flops, rates, peaks, lambda sizes, at: _product_share(kernels, sizes, at))
    if table.fused.any:
        flops, rates = attention_kernels(table.fused, gemm, flops, rates, peaks, efficiency)
    if kernels.fuses and table.attention is not None:
        flops, rates = fused_attention(table.attention, gemm, flops, rates, peaks, efficiency)
    traffic = kernels.moved_bytes / (kernels.chip.memory_bytes_per_second * efficiency.stream_share)
    if applies("older-libraries"):
        traffic = older_traffic_seconds(traffic, table, kernels.software.memory_bound_slowdown)
    return flops / rates, traffic


@rule("older-libraries", "spcl/substation; Ivanov et al. 2021, arXiv 2007.00072: a layer of BERT-large in 2020")
def older_traffic_seconds(traffic: Floats, table: KernelTable, slowdown: float) -> Floats:
    """Return the seconds of memory traffic, where all kernels but GEMMs move their bytes more slowly."""
    return np.where(table.gemm.is_gemm, traffic, traffic * slowdown)


_PROFILES: Mapping[str, DeviceProfile] = {
    "cpu": DeviceProfile(_on_cpu),
    "tpu": DeviceProfile(_on_tpu),
    "gpu": DeviceProfile(_on_gpu, layer_kernels=True, waits_for_slowest=True),
}
