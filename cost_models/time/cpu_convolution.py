"""Seconds of the convolutions that XLA:CPU works out in plain loops: over volumes, and by groups of channels.

Eigen's libraries take images and lines (`cpu.py`). For the rest XLA picks windows position by position, whatever
they hold. Timed one by one with jax 0.10.2 on two x86-64 server cores that reach 490 GFLOP/s in products; the figures
(`looped_conv_operations` in `devices/efficiency.yaml`) count in operations of that peak, 490 a nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cost_models.time.kernels import KernelTable

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_VOLUME = 3  # dimensions besides batch and channels


def loop_seconds(
    table: KernelTable, batch: int, multiplied: Floats, peak: float, figures: Mapping[str, float]
) -> Floats:
    """Seconds of each row that is such a convolution, however often it runs; 0 for all others.

    multiplied   seconds that the row's multiply-adds would take a library's convolution
    peak         FLOP/s of float32 products
    """
    gemm = table.gemm_at(batch)
    grouped, volumes = table.is_grouped, _volumes(table)
    gradients = table.sums_batch
    operations = np.zeros(len(table.runs))
    for rows, of in (
        (grouped & ~gradients, _groups(gemm, table.enlarged, figures)),
        (grouped & gradients, _group_gradients(gemm, figures)),
        (volumes & ~gradients, _picked(gemm, table.window, figures)),
        (volumes & gradients, _picked_for_gradients(gemm, batch, figures)),
    ):
        operations = np.where(rows, of, operations)
    found = operations * table.runs / peak + np.where(volumes, multiplied, 0.0)
    flops = (table.flops_fixed + batch * table.flops_per_sample) * table.runs
    dilated = volumes & ~gradients & (table.enlarged > 1)
    return np.asarray(np.where(dilated, flops * table.enlarged * figures["volume_plain"] / peak, found), np.float64)


def is_looped(table: KernelTable) -> Bools:
    """Rows that `loop_seconds` speaks of."""
    return table.is_grouped | _volumes(table)


def _volumes(table: KernelTable) -> Bools:
    """Convolutions over three dimensions; windows of one position are products."""
    windows = table.sums_batch | (table.window > 1)
    return np.asarray((table.dimensions == _VOLUME) & ~table.is_grouped & windows, np.bool_)


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
