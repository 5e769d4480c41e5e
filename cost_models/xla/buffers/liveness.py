"""Computes the lifetime of each tensor of a micro-step, from its first kernel to its last, and builds the Schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cost_models.workload.workload import Kind, Role, Tensor, Workload
from cost_models.xla.buffers.buffer_reuse import FreeBuffers
from cost_models.xla.buffers.purpose import Purpose, purposes_of
from cost_models.xla.buffers.schedule import MovedTensors, Schedule, Temporaries, Updates
from cost_models.xla.fusion.kernel import Kernel, in_update
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profile import Profile, structure_batch
from cost_models.xla.tiling import storage

_ITERATIONS = 5
"""The iterations that XLA assumes of a loop, however long it is, where it decides what stays on the chip."""
_CHOOSES_BY_MEMORY, _BREADTH_FIRST = "memory-scheduler", "breadth-first-scheduler"
_FILLS = frozenset({"dynamic_update_slice"})
_IN_PLACE = frozenset({Kind.SCATTER, Kind.CUMULATIVE, Kind.BRANCH, Kind.LOOP})
_UPDATED = frozenset({Role.TRAINABLE, Role.SLOT})
_Row = tuple[int, int, int, int, str]


def schedule(workload: Workload, profile: Profile, updates: Updates, batch: int | None = None) -> Schedule:
    """Return the micro-step on one device: of the orders that the compiler tries, the order that needs least memory.

    batch  samples on the device, because some kernels differ between batches (None: the batch of the trace)
    """
    alike = workload.local_batch if batch is None else structure_batch(workload, profile, batch)
    at = batch if batch is not None and profile.scheduler.name == _CHOOSES_BY_MEMORY else alike
    found = _schedules(workload, profile, updates, alike)
    return found[0] if len(found) == 1 else min(found, key=lambda candidate: candidate.ordered_peak(at))


@lru_cache(maxsize=64)
def compiled(workload: Workload, profile: Profile, batch: int) -> tuple[Workload, tuple[Kernel, ...]]:
    """Return the lowered workload and its kernels in program order, as they are at a local batch."""
    lowered = lower(workload, profile, batch)
    outputs = frozenset(v.result for v in lowered.variables) | frozenset(lowered.outputs)
    return lowered, tuple(profile.fusion(lowered, lowered.ops, outputs, profile, batch))


@lru_cache(maxsize=256)
def _schedules(workload: Workload, profile: Profile, updates: Updates, batch: int) -> tuple[Schedule, ...]:
    """Return a schedule for each order that the compiler tries."""
    workload, kernels = compiled(workload, profile, batch)
    orders = profile.scheduler(workload, kernels, updates is Updates.AT_ONCE, profile, batch)
    return tuple(Liveness(workload, profile, updates, order).schedule(batch) for order in orders)


class Liveness:
    """Births and deaths over a flat sequence of kernels: a loop's kernels stand where the loop is.

    birth, death  the first and last kernel of each tensor
    scratch       rows of temporaries that are no tensors
    copies        tensors of state that are copied when the step begins, with the last kernel that reads the copy
    """

    def __init__(self, workload: Workload, profile: Profile, updates: Updates, kernels: Sequence[Kernel]) -> None:
        self.workload, self.profile, self.updates, self.kernels = workload, profile, updates, kernels
        self.by_memory = profile.scheduler.name == _CHOOSES_BY_MEMORY
        self.breadth_first = profile.scheduler.name == _BREADTH_FIRST
        self.birth: dict[int, int] = {}
        self.death: dict[int, int] = {}
        self.scratch: list[_Row] = []
        self.labels: list[str] = []
        self.flat: list[Kernel] = []
        self.runs: list[int] = []
        self.starts: list[int] = []
        self.copies: dict[int, int] = {}
        self.copied: dict[int, tuple[int, int]] = {}
        self.first_read: dict[int, int] = {}
        self.donated = {v.result: v.tensor for v in workload.variables}
        self.metrics = {v.result for v in workload.variables if v.role not in _UPDATED}
        self.resident = {v.tensor for v in workload.variables} | set(workload.inputs)
        self.purposes = purposes_of(workload)
        self.unread: list[tuple[int, int]] = []

    def schedule(self, batch: int) -> Schedule:
        """Return the schedule, whose kernels were found for this local batch."""
        for kernel in self.kernels:
            self.starts.append(len(self.labels))
            self._run((kernel,))
        self._apply("early-loop-stacks")
        self._keep_outputs()
        free = self._free_buffers()
        self._reuse_operands()
        self._apply("dot-workspace")
        if self.updates is Updates.SELECTED:
            self._apply("gradient-averages")
        return Schedule(
            tuple(self.kernels),
            self._temporaries(),
            tuple(self.labels),
            self.workload.tensors,
            storage(self.workload, self.profile),
            batch,
            self._traffic(),
            self.profile.on_chip_bytes,
            free,
            frozenset(self.copied),
            "heap-packing" in self.profile,
        )

    def _apply(self, name: str) -> Any:
        """Run a buffer rule, which changes births, deaths and scratch; None where the profile does not list it."""
        return self.profile.rules[name](self) if name in self.profile else None

    def _run(self, kernels: Sequence[Kernel], runs: int = 1) -> None:
        for kernel in kernels:
            start = len(self.labels)
            self.labels.append(kernel.op.layer)
            self.flat.append(kernel)
            self.runs.append(0 if kernel.body else runs)
            branch = kernel.op.kind is Kind.BRANCH
            if not branch:  # a branch's own operations write its outputs and read its operands
                self._bear(kernel, start)
            self._run(kernel.body, runs * min(kernel.op.repeat, _ITERATIONS))
            end = len(self.labels) - 1
            self._bear(kernel, end)
            for read in () if branch and kernel.body else kernel.reads:
                self.death[read] = max(self.death.get(read, -1), end)
                self.first_read.setdefault(read, start)
            for write in kernel.writes:
                self.death[write] = max(self.death[write], end)

    def _bear(self, kernel: Kernel, index: int) -> None:
        for write in kernel.writes:
            self.birth.setdefault(write, index)
            self.death.setdefault(write, index)

    def _keep_outputs(self) -> None:
        last = len(self.labels) - 1
        for output in self.workload.outputs:
            if output in self.birth:
                self.death[output] = last

    def _free_buffers(self) -> FreeBuffers | None:
        """Donate buffers of state, and return those that temporaries may use meanwhile."""
        if self.updates is Updates.AT_ONCE:
            lent: FreeBuffers | None = self._apply("lent-state-buffers")
            if lent is not None:
                return lent
        self._donate()
        unread: FreeBuffers | None = self._apply("output-buffers")
        return unread

    def _donate(self) -> None:
        """Write new state into the buffer of the old state; until the last reader of that is done, beside it.

        Where a choice between both follows, the new state is beside the old to the end.
        """
        last = len(self.labels) - 1
        for result, old in self.donated.items():
            if result in self.birth and self.updates is Updates.SELECTED and result not in self.metrics:
                self.death[result] = last
            elif result in self.birth:
                if old not in self.death:
                    self.unread.append((result, self.birth[result]))
                self.death[result] = self.death.get(old, -1) - 1
                if self.death[result] < self.birth[result]:
                    del self.birth[result]
                elif self.by_memory and self.updates is Updates.AT_ONCE:
                    self.copied[old] = (self.first_read[old], self.death[old])
                    del self.birth[result]

    def _reuse_operands(self) -> None:
        """Write results of kernels that work in place into the buffer of an operand whose last reader the kernel is."""
        for index, kernel in enumerate(self.flat):
            free = [read for read in self._replaceable(kernel) if self._dies_at(read, index)]
            for write in kernel.writes if free else ():
                made = self.workload.tensors[write]
                match = next((read for read in free if self._is_alike(read, made)), None)
                if match is not None and write in self.birth and self.birth[write] == index:
                    self._reuse(write, match, index)
                    free.remove(match)

    def _replaceable(self, kernel: Kernel) -> Sequence[int]:
        """Return the operands whose buffers a kernel's results may reuse, once they have no other reader."""
        if kernel.op.kind in _IN_PLACE:
            return kernel.reads
        beside = self.updates is Updates.SELECTED and in_update(kernel) and not self.breadth_first
        return () if beside else kernel.in_place

    def _reuse(self, write: int, match: int, index: int) -> None:
        """Join two lives: in one buffer, or in two of which one ends where the other begins."""
        self.death[match] = index - 1
        if self.breadth_first:
            self.birth[write] = self.birth.pop(match)

    def _is_alike(self, tensor: int, made: Tensor) -> bool:
        return self.workload.tensors[tensor].bytes == made.bytes

    def _dies_at(self, tensor: int, index: int) -> bool:
        return tensor not in self.resident and tensor in self.birth and self.death[tensor] == index

    def _traffic(self) -> MovedTensors:
        """Return what kernels move: of a tensor that a kernel reads or fills in part, no more than that part."""
        rows: list[tuple[int, int, int]] = []
        for index, (kernel, runs) in enumerate(zip(self.flat, self.runs, strict=True)):
            picked = dict(kernel.picked)
            ends = kernel.reads if kernel.op.primitive in _FILLS else (*kernel.reads, *kernel.writes)
            rows += [(index, picked.get(end, end), runs) for end in ends]
        columns = np.asarray(rows, np.int64).reshape(-1, 3)
        return MovedTensors(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.float64))

    def _temporaries(self) -> Temporaries:
        copies = Purpose.WEIGHT_COPIES.value
        rows: list[_Row] = [(old, 0, end, 0, copies) for old, end in self.copies.items()]
        rows += [(old, first, last, 0, copies) for old, (first, last) in self.copied.items()]
        for tensor, birth in self.birth.items():
            if tensor not in self.resident:
                purpose = self.purposes.get(tensor, Purpose.ACTIVATIONS)
                rows.append((tensor, birth, self.death[tensor], 0, purpose.value))
        rows += self.scratch
        tensor_column, births, deaths, scratch, purposes = zip(*rows, strict=True) if rows else [()] * 5
        return Temporaries(
            tensor=np.asarray(tensor_column, np.int64),
            birth=np.asarray(births, np.int64),
            death=np.asarray(deaths, np.int64),
            scratch=np.asarray(scratch, np.float64),
            purpose=np.asarray(purposes, np.str_),
        )
