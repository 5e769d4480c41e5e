"""Temporaries that lie where something else will be.

A new state that takes no old one's place (its old value was never read, so the compiled program does not take it in)
has room of its own from the start of the program. XLA puts a temporary there while it is empty, one at a time, largest
first, into the smallest room that holds it (its buffer assignment).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_COUNT = 2000  # temporaries that are looked at: smaller ones make no difference


def lodged(sizes: Floats, birth: Whole, death: Whole, rooms: Sequence[tuple[float, int]]) -> npt.NDArray[np.bool_]:
    """Which temporaries lie in a room and so take none of their own.

    rooms  (bytes, the kernel that fills it)
    """
    found = np.zeros(len(sizes), np.bool_)
    tenants: list[tuple[float, int, list[tuple[int, int]]]] = [(size, filled, []) for size, filled in sorted(rooms)]
    largest = max((size for size, _ in rooms), default=0.0)
    for row in np.argsort(-sizes, kind="stable")[:_COUNT]:
        size, first, last = float(sizes[row]), int(birth[row]), int(death[row])
        if not 0 < size <= largest:
            continue
        for room, filled, inside in tenants:
            if size <= room and last < filled and all(last < begin or first > end for begin, end in inside):
                inside.append((first, last))
                found[row] = True
                break
    return found
