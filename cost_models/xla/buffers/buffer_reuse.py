"""Temporaries in the places of state that waits for its new value.

XLA gives a new value of a variable the place of the old one. Where something reads the old value that need not be over
when the new one is written, the old value is copied when the step begins, and its place is free from then on until
the new value is written. Other places are free from the last reader on. What is largest is put into the smallest
place that holds it, one temporary at a time in each (BufferAssigner, jax 0.10.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.xla.fusion.fusion import Kernel
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]

_COUNT = 2000  # temporaries that are looked at: smaller ones make no difference


@dataclass(frozen=True)
class Places:
    """A place for each variable that lends one: its tensor, and between which kernels it is free.

    copies  how many of the first temporaries are copies of old values, in the order in which they are made; the place
            of a copied variable comes at the same position
    """

    tensor: npt.NDArray[np.int64]
    opens: npt.NDArray[np.int64]
    closes: npt.NDArray[np.int64]
    copies: int


@rule("output-buffers", source="BufferAssigner: programs compiled for A100")
def rooms(filled: Sequence[tuple[int, int]]) -> Places:
    """Places of new states that take no old one's: free from the start of the program until they are filled.

    Their old values were never read, so the compiled program does not take them in. filled: (tensor, kernel).
    """
    tensor, closes = np.asarray(filled, np.int64).reshape(-1, 2).T
    return Places(tensor, np.full(len(filled), -1, np.int64), closes - 1, 0)


@rule("lent-state-buffers", source="BufferAssigner and CopyInsertion of XLA:CPU")
def lent_state_buffers(kernels: Sequence[Kernel], starts: Sequence[int]) -> StatePlaces:
    """Return the collector of buffers of state that temporaries may use while the state waits for its new value."""
    return StatePlaces(kernels, starts)


class StatePlaces:
    """Collects the places of one schedule.

    kernels  in the order in which they run; `starts` is the place of each where those of loops are counted, too
    copies   tensors of old values that are copied, with the last kernel that reads them
    """

    def __init__(self, kernels: Sequence[Kernel], starts: Sequence[int]) -> None:
        self.kernels, self.starts = kernels, starts
        self.copies: dict[int, int] = {}
        self._copied: list[tuple[int, int, int]] = []
        self._free: list[tuple[int, int, int]] = []
        self._writer = {write: place for place, kernel in enumerate(kernels) for write in kernel.writes}
        self._readers: dict[int, list[int]] = {}
        self._before: list[int] = []
        for place, kernel in enumerate(kernels):
            mask = 0
            for read in kernel.reads:
                self._readers.setdefault(read, []).append(place)
                if (source := self._writer.get(read, place)) != place:
                    mask |= self._before[source] | 1 << source
            self._before.append(mask)

    def note(self, old: int, result: int, written: int, last_read: int) -> None:
        """A variable: where its new value is written, and where its old one is read for the last time."""
        writer = self._writer[result]
        others = (reader for reader in self._readers.get(old, ()) if reader != writer)
        if all(self._before[writer] >> reader & 1 for reader in others):
            self._free.append((old, last_read + 1, written - 1))
        else:
            self.copies[old] = last_read
            self._copied.append((old, 0, written - 1))

    def places(self) -> Places:
        """All that are free for a while; those of copied variables first."""
        rows = [*self._copied, *(row for row in self._free if row[1] <= row[2])]
        tensor, opens, closes = np.asarray(rows, np.int64).reshape(-1, 3).T
        return Places(tensor, opens, closes, len(self._copied))


def in_places(
    places: Places, stored: Floats, sizes: Floats, birth: npt.NDArray[np.int64], death: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which temporaries stand in places of state. `stored` are bytes by tensor, `sizes` bytes of the temporaries."""
    inside = np.zeros(len(sizes), np.bool_)
    room = stored[places.tensor]
    opens, since = places.opens.astype(np.float64), birth.astype(np.float64)
    turn = np.arange(places.copies) / max(places.copies, 1) - 1.0
    since[: places.copies] = turn
    opens[: places.copies] = turn + 1.0 / (2 * max(places.copies, 1))
    largest = room.max(initial=0.0)
    taken: list[list[int]] = [[] for _ in room]
    for row in np.argsort(-sizes, kind="stable")[:_COUNT]:
        if sizes[row] <= 0:
            break
        if sizes[row] > largest:
            continue
        fits = np.flatnonzero((room >= sizes[row]) & (opens <= since[row]) & (places.closes >= death[row]))
        for place in fits[np.argsort(room[fits], kind="stable")]:
            if all(death[other] < since[row] or since[other] > death[row] for other in taken[place]):
                taken[place].append(int(row))
                inside[row] = True
                break
    return inside
