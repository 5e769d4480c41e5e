"""Which values a compiler keeps in the memory on the chip, so that they take none of the device's.

XLA:TPU places a value there where there is room for all of its life, and where that life is short against the time
that a copy from the device's memory would take (memory-space assignment: what lives longer is written out). Time is
counted in bytes that the kernels meanwhile move.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_LONGEST = 30.0
"""Bytes moved while a value lives, as a multiple of its own, as compiled programs show it. XLA's own limit is in
seconds (`max_overlap_to_mem_size_async_copy_ratio`)."""
_KEPT_FREE = 0.2
"""Of the room, beside two values or more: weights are fetched ahead into it."""
_SHARE = 1e-3  # of the room: smaller values are not worth a decision


@rule("vmem", source="memory-space assignment of XLA:TPU; programs compiled for TPU v5e")
def on_chip(sizes: Floats, birth: Whole, death: Whole, moved: Floats, room: int) -> npt.NDArray[np.bool_]:
    """Which values are on the chip.

    sizes of values in bytes, birth and death their first and last kernel; moved: bytes that each kernel moves; room:
    bytes on the chip.
    """
    found = np.zeros(len(sizes), np.bool_)
    elapsed = np.concatenate(([0.0], np.cumsum(moved)))
    lasts = elapsed[np.maximum(death, birth)] - elapsed[np.minimum(birth + 1, len(moved))]
    able = np.flatnonzero((sizes > _SHARE * room) & (sizes <= room) & (lasts <= _LONGEST * sizes))
    free = np.full(len(moved), float(room))
    for index in able[np.argsort(-sizes[able], kind="stable")]:
        life = slice(birth[index], death[index] + 1)
        left = free[life].min()
        if sizes[index] <= left and (left == room or left - sizes[index] >= _KEPT_FREE * room):
            free[life] -= sizes[index]
            found[index] = True
    return found
