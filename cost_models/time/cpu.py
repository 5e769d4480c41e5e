"""Seconds of kernels on a processor: products of libraries on its cores, convolutions as Eigen picks their windows, and
loops over memory.

What XLA:CPU of jax 0.10.2 was seen to do, kernel by kernel, on two x86-64 server cores; every figure is a share of what
the machine at hand was measured to reach (`kinds.cpu` in `devices/efficiency.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.hardware.cluster import Chip
from cost_models.hardware.efficiency import Efficiency
from cost_models.time.cpu_convolution import is_looped, loop_seconds
from cost_models.time.kernels import KernelTable

Floats = npt.NDArray[np.float64]


_CACHE_BYTES = 2**25
"""Of a processor that does not tell."""
_FEW, _SOME, _MANY = 16, 24, 32  # features
_COLOURS = 3
_A_CORE_BYTES = 2**18
"""XLA:CPU splits a loop over memory in parts that move so much (`parallel_task_assignment.cc`)."""


def processor_seconds(
    table: KernelTable, batch: int, moved: Floats, peaks: Floats, chip: Chip, efficiency: Efficiency
) -> tuple[Floats, Floats]:
    """(seconds of arithmetic, seconds of memory traffic) of each row, however often it runs, on the whole processor.

    moved  bytes of each row, and `peaks` the FLOP/s of products in its dtype
    """
    flops = (table.flops_fixed + batch * table.flops_per_sample) * table.runs
    gemm = table.gemm_at(batch)
    scalar, each = chip.peak_flops_per_second["float32"], moved / table.runs
    cores = np.clip(np.floor(each / _A_CORE_BYTES), 1, _cores(chip))
    rates = scalar * efficiency.vector_share * cores / _cores(chip)
    peaks = peaks * efficiency.gemm_share
    rates = np.where(table.is_gemm, peaks * _product_share(table, gemm, chip, efficiency), rates)
    rates = np.where(table.is_convolution, peaks * _convolution_share(table, efficiency), rates)
    for kind, rows in table.slow.items():
        if kind in efficiency.slow_kernel_shares:
            rates[rows] = scalar * efficiency.slow_kernel_shares[kind]
    compute = np.maximum(flops / rates, _picking_seconds(table, gemm, scalar, efficiency))
    compute = np.where(
        is_looped(table), loop_seconds(table, batch, flops / rates, scalar, efficiency.looped_conv_operations), compute
    )
    compute = compute + np.where((table.runs == 1) & (cores > 1), efficiency.fork_seconds, 0.0)
    streams = chip.memory_bytes_per_second * efficiency.stream_share
    return compute, moved / (streams * _bandwidth_share(table, each, chip, efficiency))


def _cores(chip: Chip) -> int:
    return chip.processors or 1


def _product_share(table: KernelTable, gemm: Floats, chip: Chip, efficiency: Efficiency) -> Floats:
    """Of matrix products: small ones run on fewer cores. Operands that lie the other way are copied by other rows."""
    multiplied = np.prod(np.maximum(gemm, 1.0), axis=1)
    busy = np.clip(multiplied / efficiency.macs_per_core, 1.0, _cores(chip)) / _cores(chip)
    reached = np.where(table.runs > 1, efficiency.loop_gemm_share, efficiency.library_gemm_share)
    return np.asarray(busy * reached, np.float64)


def _convolution_share(table: KernelTable, efficiency: Efficiency) -> Floats:
    """Along one dimension they are nearly products; gradients of kernels sum over positions."""
    own, lines = efficiency.conv_share, efficiency.conv1d_shares
    gradients = np.where(table.is_line, lines[1], efficiency.conv_weight_gradient_share)
    return np.where(table.sums_batch, gradients, np.where(table.is_line, lines[0], own))


def _picking_seconds(table: KernelTable, gemm: Floats, scalar: float, efficiency: Efficiency) -> Floats:
    """Of what a convolution needs at least: it picks every window's positions, however few channels they have.

    Of an odd number of channels, as an image's three are, some numbers of features take several times as long.
    """
    channels, features = gemm[:, 3] / np.maximum(table.window, 1.0), gemm[:, 2]
    three, more, wider = efficiency.odd_channel_slowdown
    odd = (channels > 1) & (channels % 2 == 1)
    times = np.where(odd & (features > _FEW) & (features <= _SOME), np.where(channels == _COLOURS, three, more), 1.0)
    times = np.where(odd & (features > _SOME) & (features <= _MANY), wider, times)
    return np.asarray(gemm[:, 1] * table.window * table.runs * times / (scalar * efficiency.im2col_share), np.float64)


def _between(part: Floats, known: Sequence[tuple[float, float]]) -> Floats:
    """Shares at logarithms of sizes, between known ones."""
    sizes, shares = zip(*known, strict=True)
    return np.asarray(2.0 ** np.interp(part, np.log2(sizes), np.log2(shares)), np.float64)


def _bandwidth_share(table: KernelTable, each: Floats, chip: Chip, efficiency: Efficiency) -> Floats:
    """Of the bandwidth of long streams, by the bytes that a kernel moves: of a loop's they are near.

    Transposed operands are read across, line after line of the cache for a few elements of each.
    """
    part = np.log2(np.maximum(each, 1.0) / (chip.cache_bytes or _CACHE_BYTES))
    straight, looping = (_between(part, known) for known in (efficiency.cache_curve, efficiency.loop_cache_curve))
    share = np.where(table.runs > 1, looping, straight)
    return share * np.where(table.is_across, efficiency.strided_share, 1.0)
