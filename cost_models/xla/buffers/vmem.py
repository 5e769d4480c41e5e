"""Decides which values XLA:TPU leaves in on-chip memory (VMEM), so that they take none of the device's memory.

Memory-space assignment places a value on the chip if there is room for all of its life, and if that life is short
compared with the time of a copy from the device's memory. Time is counted in bytes that the kernels meanwhile move.
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
_FREE_SHARE = 0.2
"""Share of the room that stays free beside two values or more: weights are fetched into it ahead of their use."""
_SHARE = 1e-3  # of the room: smaller values are not worth a decision


@rule("vmem", source="memory-space assignment of XLA:TPU; programs compiled for TPU v5e")
def vmem(sizes: Floats, birth: Whole, death: Whole, moved: Floats, room: int) -> npt.NDArray[np.bool_]:
    """Return which values are in the memory on the chip.

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
        if sizes[index] <= left and (left == room or left - sizes[index] >= _FREE_SHARE * room):
            free[life] -= sizes[index]
            found[index] = True
    return found
