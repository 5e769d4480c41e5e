"""Estimates heap fragmentation: packs buffers by best fit as XLA does, and returns heap size over live bytes.

XLA places buffers largest first, each into the smallest gap that is free for all of its life (best fit). It does so
twice, by size and by length of life, and takes the smaller heap (GlobalDecreasingSizeBestFitHeap).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_COUNT = 600  # buffers that are placed: smaller ones fill gaps
_SHARE = 1e-4  # of the peak: smaller buffers are not placed either


@rule("heap-packing", source="GlobalDecreasingSizeBestFitHeap")
def heap_packing(sizes: Floats, birth: Whole, death: Whole) -> float:
    """Return the bytes of the heap over the bytes alive at the peak, at least 1.

    sizes in bytes; birth and death are the first and last kernel of each buffer, both included.
    """
    peak = _peak(sizes, birth, death)
    chosen = np.argsort(-sizes, kind="stable")[:_COUNT]
    chosen = chosen[sizes[chosen] > _SHARE * peak]
    if peak <= 0 or len(chosen) < 2:
        return 1.0
    sizes, birth, death = sizes[chosen], birth[chosen], death[chosen]
    by_size = np.lexsort((birth - death, -sizes))
    by_life = np.lexsort((-sizes, birth - death))
    heap = min(_heap_bytes(order, sizes, birth, death) for order in (by_size, by_life))
    return max(1.0, heap / _peak(sizes, birth, death))


def _peak(sizes: Floats, birth: Whole, death: Whole) -> float:
    kernels = int(death.max(initial=0)) + 2
    change = np.bincount(birth, sizes, kernels) - np.bincount(np.maximum(death + 1, birth), sizes, kernels)
    return float(np.cumsum(change).max(initial=0.0))


def _heap_bytes(order: npt.NDArray[np.intp], sizes: Floats, birth: Whole, death: Whole) -> float:
    """Return the bytes up to the end of the last buffer when buffers are placed in this order."""
    sizes, birth, death = sizes[order], birth[order], death[order]
    starts = np.zeros(len(order))
    for index in range(len(order)):
        beside = np.flatnonzero((birth[:index] <= death[index]) & (death[:index] >= birth[index]))
        occupied = sorted(zip(starts[beside].tolist(), sizes[beside].tolist(), strict=True))
        starts[index] = _best_fit(occupied, float(sizes[index]))
    return float((starts + sizes).max())


def _best_fit(occupied: Sequence[tuple[float, float]], size: float) -> float:
    """Return the start of the smallest gap that holds `size`, else the end of the last buffer.

    occupied  (start, size) of buffers, by start
    """
    end, best, least = 0.0, -1.0, np.inf
    for start, length in occupied:
        if size <= start - end < least:
            best, least = end, start - end
        end = max(end, start + length)
    return best if best >= 0 else end
