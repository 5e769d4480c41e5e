"""Seconds of kernels on a CPU: library GEMMs, convolutions, and loops over memory.

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

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_CACHE_BYTES = 2**25
"""Last-level cache of a CPU whose description has none."""
_FEW, _SOME, _MANY = 16, 24, 32  # features
_COLOURS = 3
_BYTES_PER_CORE = 2**18
"""XLA:CPU splits a loop over memory in parts that move so much (`parallel_task_assignment.cc`)."""
_VOLUME = 3  # dimensions besides batch and channels


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
    applies = software.applies
    flops = table.flops_at(batch)
    gemm = table.gemm.at(batch)
    scalar, each = chip.peak_flops_per_second["float32"], moved / table.runs
    cores = np.full(len(each), float(_cores(chip)))
    if applies("cpu_loops_by_core"):
        cores = np.clip(np.floor(each / _BYTES_PER_CORE), 1, _cores(chip))
    rates = scalar * efficiency.vector_share * cores / _cores(chip)
    peaks = peaks * efficiency.gemm_share
    rates = np.where(table.gemm.is_gemm, peaks * _gemm_share(table, gemm, chip, efficiency, software), rates)
    rates = np.where(table.convolution.is_convolution, peaks * _convolution_share(table, efficiency, software), rates)
    for kind, rows in table.slow.items():
        if kind in efficiency.slow_kernel_shares and applies(f"cpu_{kind}"):
            rates[rows] = scalar * efficiency.slow_kernel_shares[kind]
    compute = flops / rates
    if applies("cpu_im2col"):
        compute = np.maximum(compute, _gathering_seconds(table, gemm, scalar, efficiency, software))
    if applies("cpu_looped_convolutions"):
        looped = loop_seconds(table, batch, flops / rates, scalar, efficiency.looped_conv_operations)
        compute = np.where(is_looped(table), looped, compute)
    if applies("cpu_fork"):
        compute = compute + np.where((table.runs == 1) & (cores > 1), efficiency.fork_seconds, 0.0)
    streams = chip.memory_bytes_per_second * efficiency.stream_share
    return compute, moved / (streams * _bandwidth_share(table, each, chip, efficiency, software))


def _cores(chip: Chip) -> int:
    return chip.processors or 1


def _gemm_share(table: KernelTable, gemm: Floats, chip: Chip, efficiency: Efficiency, software: Software) -> Floats:
    """Small GEMMs run on fewer cores. Operands in another memory order are copied by other rows."""
    multiplied = np.prod(np.maximum(gemm, 1.0), axis=1)
    busy = np.ones(len(gemm))
    if software.applies("cpu_gemm_by_core"):
        busy = np.clip(multiplied / efficiency.macs_per_core, 1.0, _cores(chip)) / _cores(chip)
    in_loops = efficiency.loop_gemm_share if software.applies("cpu_loop_gemms") else efficiency.library_gemm_share
    reached = np.where(table.runs > 1, in_loops, efficiency.library_gemm_share)
    return np.asarray(busy * reached, np.float64)


def _convolution_share(table: KernelTable, efficiency: Efficiency, software: Software) -> Floats:
    """Along one dimension convolutions are nearly GEMMs; gradients of kernels sum over positions."""
    own, lines = efficiency.conv_share, efficiency.conv1d_shares
    of_images = efficiency.conv_weight_gradient_share if software.applies("cpu_conv_weight_gradients") else own
    is_line = table.convolution.is_line if software.applies("cpu_conv1d") else np.zeros(len(table.runs), np.bool_)
    gradients = np.where(is_line, lines[1], of_images)
    return np.where(table.gemm.sums_batch, gradients, np.where(is_line, lines[0], own))


def _gathering_seconds(
    table: KernelTable, gemm: Floats, scalar: float, efficiency: Efficiency, software: Software
) -> Floats:
    """Seconds in which a convolution gathers the positions of its windows (im2col), however few channels they have.

    With an odd number of channels, as the three of an image, some numbers of features take several times as long.
    """
    times = np.ones(len(gemm))
    if software.applies("cpu_odd_channels"):
        channels, features = gemm[:, 3] / np.maximum(table.convolution.window, 1.0), gemm[:, 2]
        three, more, wider = efficiency.odd_channel_slowdown
        odd = (channels > 1) & (channels % 2 == 1)
        few = odd & (features > _FEW) & (features <= _SOME)
        times = np.where(few, np.where(channels == _COLOURS, three, more), times)
        times = np.where(odd & (features > _SOME) & (features <= _MANY), wider, times)
    return np.asarray(
        gemm[:, 1] * table.convolution.window * table.runs * times / (scalar * efficiency.im2col_share), np.float64
    )


def _between(part: Floats, known: Sequence[tuple[float, float]]) -> Floats:
    """Shares at logarithms of sizes, between known ones."""
    sizes, shares = zip(*known, strict=True)
    return np.asarray(2.0 ** np.interp(part, np.log2(sizes), np.log2(shares)), np.float64)


def _bandwidth_share(
    table: KernelTable, each: Floats, chip: Chip, efficiency: Efficiency, software: Software
) -> Floats:
    """Share of the bandwidth of long streams, by the bytes that a kernel moves: small operands are in a cache.

    Transposed operands are read across, a line of the cache for a few elements of each.
    """
    part = np.log2(np.maximum(each, 1.0) / (chip.cache_bytes or _CACHE_BYTES))
    straight, looping = (_between(part, known) for known in (efficiency.cache_curve, efficiency.loop_cache_curve))
    if not software.applies("cpu_caches"):
        straight = np.full(len(each), efficiency.cache_curve[-1][1])
    share = np.where(table.runs > 1, looping if software.applies("cpu_loop_caches") else straight, straight)
    strided = efficiency.strided_share if software.applies("cpu_strided_reads") else 1.0
    return share * np.where(table.traffic.is_strided, strided, 1.0)


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
    """Convolutions over three dimensions; windows of one position are products."""
    windows = table.gemm.sums_batch | (table.convolution.window > 1)
    return np.asarray((table.convolution.dimensions == _VOLUME) & ~table.gemm.is_grouped & windows, np.bool_)


def _groups(gemm: Floats, enlarged: Floats, figures: Mapping[str, float]) -> Floats:
    """Every group at every position, of a stride's gradient at every position of the larger image."""
    each = figures["group_position"] + figures["group_pick"] * gemm[:, 3]
    return np.asarray(gemm[:, 0] * gemm[:, 1] * enlarged * each, np.float64)


def _group_gradients(gemm: Floats, figures: Mapping[str, float]) -> Floats:
    """Of depthwise kernels an element at a time; of others all channels for each group, of which its own are chosen."""
    groups, window, features, positions = gemm.T
    whole = groups * window * positions
    chosen = groups * whole * figures["group_gradient"] + 2 * whole * groups * features * figures["group_product"]
    return np.asarray(np.where(features <= 1, whole * figures["depthwise_gradient"], chosen), np.float64)


def _picked(gemm: Floats, taps: Floats, figures: Mapping[str, float]) -> Floats:
    return np.asarray(
        gemm[:, 1] * np.maximum(taps * figures["volume_tap"], gemm[:, 3] * figures["volume_pick"]), np.float64
    )


def _picked_for_gradients(gemm: Floats, batch: int, figures: Mapping[str, float]) -> Floats:
    """Samples stand where channels do in other convolutions: few of them are picked as slowly as one."""
    each = figures["volume_pick"] + figures["volume_sample"] / max(batch, figures["volume_samples"])
    return np.asarray(gemm[:, 1] * gemm[:, 3] * each, np.float64)
