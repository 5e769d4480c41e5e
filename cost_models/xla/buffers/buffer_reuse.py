"""Places temporaries in the buffers of variables and optimizer state while these buffers are free.

XLA writes a new value of a variable into the buffer of the old value. Where a kernel reads the old value that need not
be over when the new value is written, the old value is copied when the step begins, and its buffer is free from then
until the new value is written. Other buffers are free from the last reader on. The largest temporary goes into the
smallest buffer that holds it, one temporary at a time in each (BufferAssigner).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.xla.dataflow import ancestors
from cost_models.xla.fusion.kernel import Kernel
from cost_models.xla.rules import rule

if TYPE_CHECKING:
    from cost_models.xla.buffers.liveness import Liveness

Floats = npt.NDArray[np.float64]

_COUNT = 2000  # temporaries that are placed: smaller ones make no difference


@dataclass(frozen=True)
class FreeBuffers:
    """Buffers of variables, with the tensor that fills each and the first and last kernel for which it is free.

    copies  how many of the first temporaries are copies of old values, in the order in which they are made; the buffer
            of a copied variable has the same index
    """

    tensor: npt.NDArray[np.int64]
    opens: npt.NDArray[np.int64]
    closes: npt.NDArray[np.int64]
    copies: int


@rule("output-buffers", source="BufferAssigner; programs compiled for A100")
def output_buffers(live: Liveness) -> FreeBuffers | None:
    """Return the buffers of new state whose old value is never read: free from the start until they are filled.

    The compiled program does not take these old values as arguments.
    """
    return until_filled(live.unread) if live.unread else None


def until_filled(filled: Sequence[tuple[int, int]]) -> FreeBuffers:
    """Return buffers that are free from the start, by (tensor, kernel that fills it)."""
    tensor, closes = np.asarray(filled, np.int64).reshape(-1, 2).T
    return FreeBuffers(tensor, np.full(len(filled), -1, np.int64), closes - 1, 0)


@rule("lent-state-buffers", source="BufferAssigner and CopyInsertion of XLA:CPU")
def lent_state_buffers(live: Liveness) -> FreeBuffers:
    """Return the buffers of state that are free until their new value is written.

    Old values that are read otherwise are copied when the step begins.
    """
    found = StateBuffers(live.kernels, live.starts)
    for result, old in live.donated.items():
        if result in live.birth:
            found.note(old, result, live.birth.pop(result), live.death.get(old, -1))
    live.copies = found.copies
    return found.free()


class StateBuffers:
    """Collects the free buffers of one schedule.

    kernels  in the order in which they run; `starts` is the index of each where those of loops are counted, too
    copies   tensors of old values that are copied, with the last kernel that reads them
    """

    def __init__(self, kernels: Sequence[Kernel], starts: Sequence[int]) -> None:
        self.copies: dict[int, int] = {}
        self._copied: list[tuple[int, int, int]] = []
        self._free: list[tuple[int, int, int]] = []
        self._writer = {write: index for index, kernel in enumerate(kernels) for write in kernel.writes}
        self._readers: dict[int, list[int]] = {}
        for index, kernel in enumerate(kernels):
            for read in kernel.reads:
                self._readers.setdefault(read, []).append(index)
        self._before = ancestors((kernel.reads, kernel.writes) for kernel in kernels)

    def note(self, old: int, result: int, written: int, last_read: int) -> None:
        """Note a variable: the kernel that writes its new value, and the last kernel that reads the old value."""
        writer = self._writer[result]
        others = (reader for reader in self._readers.get(old, ()) if reader != writer)
        if all(self._before[writer] >> reader & 1 for reader in others):
            self._free.append((old, last_read + 1, written - 1))
        else:
            self.copies[old] = last_read
            self._copied.append((old, 0, written - 1))

    def free(self) -> FreeBuffers:
        """Return the buffers that are free for a while; those of copied variables first."""
        rows = [*self._copied, *(row for row in self._free if row[1] <= row[2])]
        tensor, opens, closes = np.asarray(rows, np.int64).reshape(-1, 3).T
        return FreeBuffers(tensor, opens, closes, len(self._copied))


def in_free_buffers(
    free: FreeBuffers, stored: Floats, sizes: Floats, birth: npt.NDArray[np.int64], death: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which temporaries are in free buffers of state.

    stored  bytes by tensor; sizes: bytes of the temporaries; birth, death: their first and last kernel
    """
    inside = np.zeros(len(sizes), np.bool_)
    room = stored[free.tensor]
    opens, since = _in_order_of_copies(free, birth)
    largest = room.max(initial=0.0)
    taken: list[list[int]] = [[] for _ in room]
    for row in np.argsort(-sizes, kind="stable")[:_COUNT]:
        if sizes[row] <= 0:
            break
        if sizes[row] > largest:
            continue
        fits = np.flatnonzero((room >= sizes[row]) & (opens <= since[row]) & (free.closes >= death[row]))
        for buffer in fits[np.argsort(room[fits], kind="stable")]:
            if all(death[other] < since[row] or since[other] > death[row] for other in taken[buffer]):
                taken[buffer].append(int(row))
                inside[row] = True
                break
    return inside


def _in_order_of_copies(free: FreeBuffers, birth: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return (when buffers become free, when temporaries begin), with copies one after the other before kernel 0.

    Copy number n of N begins at n / N - 1, and its variable's buffer is free half a step later: a later copy may use
    the buffer of a variable that was copied before.
    """
    opens, since = free.opens.astype(np.float64), birth.astype(np.float64)
    if free.copies:
        begins = np.arange(free.copies) / free.copies - 1.0
        since[: free.copies] = begins
        opens[: free.copies] = begins + 1.0 / (2 * free.copies)
    return opens, since
