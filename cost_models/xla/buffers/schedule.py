"""`Schedule`: kernels of a micro-step in order, and the bytes in memory at each kernel, for every batch size.

Sizes are lines in the batch, so the bytes alive at a kernel are a line too, and the peak over kernels is the maximum of
lines: computed once for a structure, evaluated for any number of batch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models.workload.workload import Tensor
from cost_models.xla.buffers.buffer_reuse import FreeBuffers, in_free_buffers
from cost_models.xla.buffers.heap import heap_packing
from cost_models.xla.buffers.vmem import vmem
from cost_models.xla.fusion.kernel import Kernel
from cost_models.xla.tiling import Storage

Floats = npt.NDArray[np.float64]


class Updates(StrEnum):
    """When gradients become new weights.

    AT_ONCE    each as soon as it exists, in place
    TOGETHER   when the backward pass is over: data parallelism reduces them together, Python hands them over together
    SELECTED   together, and old and new state exist side by side until one is chosen: Keras's accumulation on JAX
    """

    AT_ONCE = "at_once"
    TOGETHER = "together"
    SELECTED = "selected"


@dataclass(frozen=True)
class Temporaries:
    """Every temporary as a column: its tensor (-1: scratch), first and last kernel, bytes of scratch, and purpose."""

    tensor: npt.NDArray[np.int64]
    birth: npt.NDArray[np.int64]
    death: npt.NDArray[np.int64]
    scratch: Floats
    purpose: npt.NDArray[np.str_]


@dataclass(frozen=True)
class MovedTensors:
    """The tensors that kernels read and write, a row each: the kernel, the tensor, and how often the kernel runs."""

    kernel: npt.NDArray[np.int64]
    tensor: npt.NDArray[np.int64]
    runs: Floats


@dataclass(frozen=True)
class Schedule:
    """Kernels in the order in which they run, and the temporaries in memory at each.

    labels       the layer of each kernel, kernels of loops included
    stored       how the device stores the tensors that `temporaries` names
    local_batch  samples for which the kernels were found
    free         buffers of state that temporaries may use (None: there are none)
    copied       state that is copied because its new value comes before its last reader in this order
    packs        whether gaps between buffers are counted
    """

    kernels: tuple[Kernel, ...]
    temporaries: Temporaries
    labels: tuple[str, ...] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)
    stored: Storage = field(repr=False)
    local_batch: int
    traffic: MovedTensors = field(repr=False)
    on_chip_bytes: int = 0
    free: FreeBuffers | None = field(default=None, repr=False)
    copied: frozenset[int] = frozenset()
    packs: bool = True
    _known: dict[int, Floats] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def packing(self) -> float:
        """Bytes of the compiler's heap over bytes alive at once; gaps grow with the batch as buffers do."""
        if not self.packs:
            return 1.0
        return float(heap_packing(self.sizes(self.local_batch), self.temporaries.birth, self.temporaries.death))

    def sizes(self, batch: int) -> Floats:
        """Return the bytes of every temporary in the device's memory at a local batch."""
        if batch not in self._known:
            stored = self.stored.at(batch)
            sizes = self._of_temporaries(stored)
            if self.on_chip_bytes:
                sizes = np.where(self._on_chip(sizes, stored), 0.0, sizes)
            if self.free is not None:
                columns = self.temporaries
                inside = in_free_buffers(self.free, stored, sizes, columns.birth, columns.death)
                sizes = np.where(inside, 0.0, sizes)
            self._known[batch] = sizes
        return self._known[batch]

    def _on_chip(self, sizes: Floats, stored: Floats) -> npt.NDArray[np.bool_]:
        weights = stored[self.traffic.tensor] * self.traffic.runs
        moved = np.bincount(self.traffic.kernel, weights, len(self.labels)).astype(np.float64)
        columns = self.temporaries
        return np.asarray(vmem(sizes, columns.birth, columns.death, moved, self.on_chip_bytes), np.bool_)

    def live(self, batch: int) -> Floats:
        """Return the bytes of temporaries alive at each kernel."""
        if self.stored.lanes or self.free is not None:
            return self._sweep(self.sizes(batch))
        fixed, per_sample = self.lines
        return fixed + batch * per_sample

    @cached_property
    def lines(self) -> tuple[Floats, Floats]:
        """(live_fixed, live_per_sample) by kernel, without padding: computed once, they answer for every batch."""
        none = self.temporaries.scratch * 0
        per_sample = np.where(self.temporaries.tensor >= 0, self.stored.per_sample[self.temporaries.tensor], none)
        return self._sweep(self._of_temporaries(self.stored.fixed)), self._sweep(per_sample)

    def peak(self, batch: int) -> tuple[int, int]:
        """Return (bytes of temporaries at the peak, the kernel of the peak)."""
        if not self.labels:
            return 0, 0
        live = self.live(batch)
        at = int(live.argmax())
        return round(float(live[at])), at

    def ordered_peak(self, batch: int) -> int:
        """Return the bytes at the peak when a compiler chooses among orders: it copies state after that."""
        if not self.copied or not self.labels:
            return self.peak(batch)[0]
        sizes = np.where(np.isin(self.temporaries.tensor, list(self.copied)), 0.0, self.sizes(batch))
        return round(float(self._sweep(sizes).max()))

    def on_chip_at(self, batch: int, at: int) -> int:
        """Return the bytes of the temporaries on the chip at a kernel."""
        if not self.on_chip_bytes:
            return 0
        return round(float(self._on_chip_sizes(batch)[self.alive(at)].sum()))

    def _on_chip_sizes(self, batch: int) -> Floats:
        return self._of_temporaries(self.stored.at(batch)) - self.sizes(batch)

    def alive(self, at: int) -> npt.NDArray[np.bool_]:
        """Return which temporaries are in memory at a kernel."""
        return (self.temporaries.birth <= at) & (at <= self.temporaries.death)

    def _of_temporaries(self, by_tensor: Floats) -> Floats:
        return np.where(self.temporaries.tensor >= 0, by_tensor[self.temporaries.tensor], self.temporaries.scratch)

    def _sweep(self, sizes: Floats) -> Floats:
        """Return the sums over what is alive at each kernel: births added, deaths taken off one kernel later."""
        columns, kernels = self.temporaries, len(self.labels)
        ends = np.maximum(columns.death + 1, columns.birth)
        change = np.bincount(columns.birth, sizes, kernels + 1) - np.bincount(ends, sizes, kernels + 1)
        return np.cumsum(change)[:kernels]
