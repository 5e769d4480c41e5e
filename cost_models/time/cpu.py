"""Estimates the seconds of kernels on a CPU: library GEMMs, convolutions, and loops over memory.

Observed with XLA:CPU of jax 0.10.2, kernel by kernel, on two x86-64 server cores. Every figure is a share of what the
machine at hand was measured to reach (`kinds.cpu` in `devices/efficiency.yaml`). Eigen's library takes convolutions
over lines and images; XLA runs those over volumes and by groups of channels in plain loops, whose figures
(`looped_conv_operations`) count in operations of the float32 peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cost_models.hardware.cluster import Chip
from cost_models.hardware.efficiency import Efficiency
from cost_models.time.kernels import KernelTable
from cost_models.time.software import KERAS, Software
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_CACHE_BYTES = 2**25
"""Last-level cache of a CPU whose description has none."""
_FEW, _SOME, _MANY = 16, 24, 32  # features
_COLOURS = 3
_VOLUME = 3  # dimensions besides batch and channels
_TIMED = "kernels timed one by one on x86-64"


def cpu_seconds(
    table: KernelTable,
    batch: int,
    moved: Floats,
    peaks: Floats,
    chip: Chip,
    efficiency: Efficiency,
    software: Software = KERAS,
) -> tuple[Floats, Floats]:
    """Return (seconds of arithmetic, seconds of memory traffic) of each row, however often it runs, on all cores.

    moved  bytes of each row
    peaks  FLOP/s of products in each row's dtype
    """
    applies, flops = software.applies, table.flops_at(batch)
    scalar, each = chip.peak_flops_per_second["float32"], moved / table.runs
    rates = np.full(len(flops), scalar * efficiency.vector_share)
    peaks = peaks * efficiency.gemm_share
    rates = np.where(table.gemm.is_gemm, peaks * _gemm_share(table, batch, chip, efficiency, software), rates)
    rates = np.where(table.convolution.is_convolution, peaks * _conv_share(table, efficiency, software), rates)
    for kind, rows in table.slow.items():
        if kind in efficiency.slow_kernel_shares and applies(f"cpu-{kind.replace('_', '-')}"):
            rates[rows] = scalar * efficiency.slow_kernel_shares[kind]
    compute = flops / rates
    if applies("cpu-im2col"):
        gathering = im2col_seconds(table, batch, scalar, efficiency)
        slower = odd_channel_slowdown(table, batch, efficiency) if applies("cpu-odd-channels") else 1.0
        compute = np.maximum(compute, gathering * slower)
    if applies("cpu-looped-convolutions"):
        looped = loop_seconds(table, batch, flops / rates, scalar, efficiency.looped_conv_operations)
        compute = np.where(is_looped(table), looped, compute)
    streams = chip.memory_bytes_per_second * efficiency.stream_share
    return compute, moved / (streams * _bandwidth_share(table, each, chip, efficiency, software))


def _cores(chip: Chip) -> int:
    return chip.processors or 1


def _gemm_share(table: KernelTable, batch: int, chip: Chip, efficiency: Efficiency, software: Software) -> Floats:
    """Share of the GEMM peak. Operands in another memory order are copied by other rows."""
    share = np.full(len(table.runs), efficiency.library_gemm_share)
    if software.applies("cpu-loop-gemms"):
        share = loop_gemm_share(table, share, efficiency)
    if software.applies("cpu-gemms-by-core"):
        share = share * gemm_core_share(table, batch, chip, efficiency)
    return share


@rule("cpu-gemms-by-core", f"{_TIMED}: small GEMMs of a library that wakes few cores")
def gemm_core_share(table: KernelTable, batch: int, chip: Chip, efficiency: Efficiency) -> Floats:
    """Return the share of the cores on which each GEMM runs: small ones run on few."""
    multiplied = np.prod(np.maximum(table.gemm.at(batch), 1.0), axis=1)
    return np.asarray(np.clip(multiplied / efficiency.macs_per_core, 1.0, _cores(chip)) / _cores(chip), np.float64)


@rule("cpu-loop-gemms", f"{_TIMED}: GEMMs in the loops of recurrent layers")
def loop_gemm_share(table: KernelTable, share: Floats, efficiency: Efficiency) -> Floats:
    """Return the share of the GEMM peak, where GEMMs in loops reach another one."""
    return np.where(table.runs > 1, efficiency.loop_gemm_share, share)


def _conv_share(table: KernelTable, efficiency: Efficiency, software: Software) -> Floats:
    """Share of the GEMM peak that convolutions reach."""
    share = np.full(len(table.runs), efficiency.conv_share)
    if software.applies("cpu-conv1d"):
        share = conv1d_share(table, share, efficiency)
    return share


@rule("cpu-conv1d", f"{_TIMED}: convolutions along one dimension are nearly GEMMs")
def conv1d_share(table: KernelTable, share: Floats, efficiency: Efficiency) -> Floats:
    """Return the share of the GEMM peak, where convolutions along one dimension reach another one."""
    forward, gradients = efficiency.conv1d_shares
    return np.where(table.convolution.is_line, np.where(table.gemm.sums_batch, gradients, forward), share)


@rule("cpu-im2col", f"{_TIMED}: convolutions of few channels")
def im2col_seconds(table: KernelTable, batch: int, scalar: float, efficiency: Efficiency) -> Floats:
    """Return the seconds in which convolutions gather the elements of their windows, even of few channels."""
    gathered = table.gemm.at(batch)[:, 1] * table.convolution.window * table.runs
    return np.asarray(gathered / (scalar * efficiency.im2col_share), np.float64)


@rule("cpu-odd-channels", f"{_TIMED}: im2col of 3 and 5 channels to 17 to 32 features")
def odd_channel_slowdown(table: KernelTable, batch: int, efficiency: Efficiency) -> Floats:
    """Return how many times as long im2col takes with an odd number of channels, by the number of features."""
    gemm = table.gemm.at(batch)
    channels, features = gemm[:, 3] / np.maximum(table.convolution.window, 1.0), gemm[:, 2]
    three, more, wider = efficiency.odd_channel_slowdown
    odd = (channels > 1) & (channels % 2 == 1)
    few = odd & (features > _FEW) & (features <= _SOME)
    times = np.where(few, np.where(channels == _COLOURS, three, more), 1.0)
    return np.where(odd & (features > _SOME) & (features <= _MANY), wider, times)


def _bandwidth_share(
    table: KernelTable, each: Floats, chip: Chip, efficiency: Efficiency, software: Software
) -> Floats:
    """Share of the bandwidth of long streams."""
    applies = software.applies
    share = np.full(len(each), efficiency.cache_curve[-1][1])
    if applies("cpu-caches"):
        share = cache_share(each, chip, efficiency.cache_curve)
    if applies("cpu-loop-caches"):
        share = np.where(table.runs > 1, loop_cache_share(each, chip, efficiency), share)
    return strided_share(table, share, efficiency) if applies("cpu-strided-reads") else share


@rule("cpu-caches", f"{_TIMED}: elementwise kernels of all sizes")
def cache_share(each: Floats, chip: Chip, curve: Sequence[tuple[float, float]]) -> Floats:
    """Return the share of the bandwidth that kernels reach, by their bytes over those of the last cache."""
    part = np.log2(np.maximum(each, 1.0) / (chip.cache_bytes or _CACHE_BYTES))
    sizes, shares = zip(*curve, strict=True)
    return np.asarray(2.0 ** np.interp(part, np.log2(sizes), np.log2(shares)), np.float64)


@rule("cpu-loop-caches", f"{_TIMED}: elementwise kernels in loops")
def loop_cache_share(each: Floats, chip: Chip, efficiency: Efficiency) -> Floats:
    """Return the share of the bandwidth that kernels in loops reach, whose operands were written shortly before."""
    return np.asarray(cache_share(each, chip, efficiency.loop_cache_curve), np.float64)


@rule("cpu-strided-reads", f"{_TIMED}: transposes")
def strided_share(table: KernelTable, share: Floats, efficiency: Efficiency) -> Floats:
    """Return the share of the bandwidth, where transposes read a line of the cache for a few elements of each."""
    return np.where(table.traffic.is_strided, share * efficiency.strided_share, share)


@rule("cpu-looped-convolutions", f"{_TIMED}: convolutions over volumes and by groups of channels")
def loop_seconds(
    table: KernelTable, batch: int, multiplied: Floats, peak: float, figures: Mapping[str, float]
) -> Floats:
    """Return the seconds of each convolution in plain loops, however often it runs; 0 for all other rows.

    multiplied   seconds that the row's multiply-adds would take a library's convolution
    peak         FLOP/s of float32 products
    """
    gemm = table.gemm.at(batch)
    grouped, volumes = table.gemm.is_grouped, _volumes(table)
    gradients = table.gemm.sums_batch
    operations = np.zeros(len(table.runs))
    for rows, of in (
        (grouped & ~gradients, _groups(gemm, table.convolution.enlarged, figures)),
        (grouped & gradients, _group_gradients(gemm, figures)),
        (volumes & ~gradients, _picked(gemm, table.convolution.window, figures)),
        (volumes & gradients, _picked_for_gradients(gemm, batch, figures)),
    ):
        operations = np.where(rows, of, operations)
    found = operations * table.runs / peak + np.where(volumes, multiplied, 0.0)
    flops = table.flops_at(batch)
    dilated = volumes & ~gradients & (table.convolution.enlarged > 1)
    return np.asarray(
        np.where(dilated, flops * table.convolution.enlarged * figures["volume_plain"] / peak, found), np.float64
    )


def is_looped(table: KernelTable) -> Bools:
    """Return the rows that `loop_seconds` is for: convolutions over volumes, and by groups of channels."""
    return table.gemm.is_grouped | _volumes(table)


def _volumes(table: KernelTable) -> Bools:
    """Convolutions over three dimensions; windows of one position are GEMMs."""
    windows = table.gemm.sums_batch | (table.convolution.window > 1)
    return np.asarray((table.convolution.dimensions == _VOLUME) & ~table.gemm.is_grouped & windows, np.bool_)


def _groups(gemm: Floats, enlarged: Floats, figures: Mapping[str, float]) -> Floats:
    """Operations of grouped convolutions: every group at every position, with strides at those of the larger image."""
    each = figures["group_position"] + figures["group_pick"] * gemm[:, 3]
    return np.asarray(gemm[:, 0] * gemm[:, 1] * enlarged * each, np.float64)


def _group_gradients(gemm: Floats, figures: Mapping[str, float]) -> Floats:
    """Operations of gradients of grouped kernels: depthwise ones an element at a time; others compute all channels for
    each group, and choose."""
    groups, window, features, positions = gemm.T
    whole = groups * window * positions
    chosen = groups * whole * figures["group_gradient"] + 2 * whole * groups * features * figures["group_product"]
    return np.asarray(np.where(features <= 1, whole * figures["depthwise_gradient"], chosen), np.float64)


def _picked(gemm: Floats, taps: Floats, figures: Mapping[str, float]) -> Floats:
    return np.asarray(
        gemm[:, 1] * np.maximum(taps * figures["volume_tap"], gemm[:, 3] * figures["volume_pick"]), np.float64
    )


def _picked_for_gradients(gemm: Floats, batch: int, figures: Mapping[str, float]) -> Floats:
    """Operations of gradients over volumes: samples take the role of channels, and few are as slow as one."""
    each = figures["volume_pick"] + figures["volume_sample"] / max(batch, figures["volume_samples"])
    return np.asarray(gemm[:, 1] * gemm[:, 3] * each, np.float64)
