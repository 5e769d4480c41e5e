"""When each tensor of a micro-step is in memory, and how many bytes that makes at each kernel, for every batch size
at once.

Sizes are lines in the batch, so the bytes alive at a kernel are a line too, and the peak over kernels is the maximum
of lines: computed once for a structure, evaluated for any number of batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Role, Tensor, Workload
from cost_models.xla.buffers.buffer_reuse import Places, StatePlaces, in_places, rooms
from cost_models.xla.buffers.heap import packing
from cost_models.xla.buffers.state_layout_copies import turned
from cost_models.xla.buffers.vmem import on_chip
from cost_models.xla.fusion.fusion import Kernel, in_update
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profile import Profile, structure_batch
from cost_models.xla.rules import rule
from cost_models.xla.tiling import Storage, storage

Floats = npt.NDArray[np.float64]

_ITERATIONS = 5
"""As often XLA takes a loop to run where it weighs what stays on the chip, however long it is."""
_CHOOSES_BY_MEMORY, _BREADTH_FIRST = "memory-scheduler", "breadth-first-scheduler"
_FILLS = frozenset({"dynamic_update_slice"})
_IN_PLACE = frozenset({Kind.SCATTER, Kind.CUMULATIVE, Kind.BRANCH, Kind.LOOP})
_UPDATED = frozenset({Role.TRAINABLE, Role.SLOT})


class Updates(StrEnum):
    """When gradients become new weights.

    AT_ONCE    each as soon as it is there, in place
    TOGETHER   when the backward pass is over: data parallelism reduces them together, Python hands them over together
    SELECTED   together, and old and new state stand side by side until one is chosen: Keras's accumulation on JAX
    """

    AT_ONCE = "at_once"
    TOGETHER = "together"
    SELECTED = "selected"


class Purpose(StrEnum):
    """What a temporary is for: the components of a memory breakdown."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    WEIGHT_COPIES = "weight_copies"
    WORKSPACE = "workspace"


@dataclass(frozen=True)
class Temporaries:
    """Every temporary as a column: its tensor (-1: scratch), first and last kernel, bytes of scratch, and purpose."""

    tensor: npt.NDArray[np.int64]
    birth: npt.NDArray[np.int64]
    death: npt.NDArray[np.int64]
    scratch: Floats
    purpose: npt.NDArray[np.str_]


@dataclass(frozen=True)
class Moved:
    """What kernels read and write: their place, the tensor, and how often they run, a row for each."""

    place: npt.NDArray[np.int64]
    tensor: npt.NDArray[np.int64]
    runs: Floats


@dataclass(frozen=True)
class Schedule:
    """Kernels in the order in which they run, and what is in memory at each.

    labels       the layer of each kernel, kernels of loops included
    stored       how the target stores the tensors that `temporaries` names
    local_batch  samples for which the kernels were found
    places       of state, in which temporaries stand while it waits for its new value (None: they do not)
    copied       state that is copied since the order lets its new value come before its last reader
    """

    kernels: tuple[Kernel, ...]
    temporaries: Temporaries
    labels: tuple[str, ...] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)
    stored: Storage = field(repr=False)
    local_batch: int
    moved: Moved = field(repr=False)
    on_chip_bytes: int = 0
    places: Places | None = field(default=None, repr=False)
    copied: frozenset[int] = frozenset()
    packs: bool = True
    _known: dict[int, Floats] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def packing(self) -> float:
        """Bytes of the compiler's heap over bytes alive at once; gaps grow with the batch as buffers do."""
        if not self.packs:
            return 1.0
        return float(packing(self.sizes(self.local_batch), self.temporaries.birth, self.temporaries.death))

    def sizes(self, batch: int) -> Floats:
        """Bytes of every temporary in the device's memory at a local batch."""
        if batch not in self._known:
            stored = self.stored.at(batch)
            sizes = self._of_temporaries(stored)
            if self.on_chip_bytes:
                sizes = np.where(self._on_chip(sizes, stored), 0.0, sizes)
            if self.places is not None:
                columns = self.temporaries
                lent = in_places(self.places, stored, sizes, columns.birth, columns.death)
                sizes = np.where(lent, 0.0, sizes)
            self._known[batch] = sizes
        return self._known[batch]

    def _on_chip(self, sizes: Floats, stored: Floats) -> npt.NDArray[np.bool_]:
        weights = stored[self.moved.tensor] * self.moved.runs
        moved = np.bincount(self.moved.place, weights, len(self.labels)).astype(np.float64)
        columns = self.temporaries
        return np.asarray(on_chip(sizes, columns.birth, columns.death, moved, self.on_chip_bytes), np.bool_)

    def live(self, batch: int) -> Floats:
        """Bytes of temporaries alive at each kernel."""
        if self.stored.lanes or self.places is not None:
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
        """(bytes of temporaries at the peak, the kernel at which it is)."""
        if not self.labels:
            return 0, 0
        live = self.live(batch)
        at = int(live.argmax())
        return round(float(live[at])), at

    def ordered_peak(self, batch: int) -> int:
        """Bytes at the peak as they are when a compiler chooses among orders: it copies state after that."""
        if not self.copied or not self.labels:
            return self.peak(batch)[0]
        sizes = np.where(np.isin(self.temporaries.tensor, list(self.copied)), 0.0, self.sizes(batch))
        return round(float(self._sweep(sizes).max()))

    def on_chip_peak(self, batch: int) -> int:
        """Bytes of the temporaries that are on the chip, at the kernel at which they are most."""
        if not self.on_chip_bytes or not self.labels:
            return 0
        on_chip = self._of_temporaries(self.stored.at(batch)) - self.sizes(batch)
        return round(float(self._sweep(on_chip).max()))

    def on_chip_at(self, batch: int, at: int) -> int:
        """Bytes of the temporaries that are on the chip at a kernel."""
        if not self.on_chip_bytes:
            return 0
        on_chip = self._of_temporaries(self.stored.at(batch)) - self.sizes(batch)
        return round(float(on_chip[self.alive(at)].sum()))

    def alive(self, at: int) -> npt.NDArray[np.bool_]:
        """Which temporaries are in memory at a kernel."""
        return (self.temporaries.birth <= at) & (at <= self.temporaries.death)

    def _of_temporaries(self, by_tensor: Floats) -> Floats:
        return np.where(self.temporaries.tensor >= 0, by_tensor[self.temporaries.tensor], self.temporaries.scratch)

    def _sweep(self, sizes: Floats) -> Floats:
        """Sums over what is alive at each kernel: births added, deaths taken off one kernel later."""
        columns, places = self.temporaries, len(self.labels)
        ends = np.maximum(columns.death + 1, columns.birth)
        change = np.bincount(columns.birth, sizes, places + 1) - np.bincount(ends, sizes, places + 1)
        return np.cumsum(change)[:places]


@lru_cache(maxsize=64)
def compiled(workload: Workload, profile: Profile, batch: int) -> tuple[Workload, tuple[Kernel, ...]]:
    """The workload as lowered for the target, and its kernels in program order, as they are at a local batch."""
    lowered = lower(workload, profile, batch)
    outputs = frozenset(v.result for v in lowered.variables) | frozenset(lowered.outputs)
    return lowered, tuple(profile.fusion(lowered, lowered.ops, outputs, profile, batch))


def schedule(workload: Workload, profile: Profile, updates: Updates, batch: int | None = None) -> Schedule:
    """The micro-step on one device.

    batch  samples on it: some kernels are others at other batches; None is the batch of the trace
    """
    alike = workload.local_batch if batch is None else structure_batch(workload, profile, batch)
    at = batch if batch is not None and profile.scheduler.name == _CHOOSES_BY_MEMORY else alike
    found = _schedules(workload, profile, updates, alike)
    return found[0] if len(found) == 1 else min(found, key=lambda candidate: candidate.ordered_peak(at))


@lru_cache(maxsize=256)
def _schedules(workload: Workload, profile: Profile, updates: Updates, batch: int) -> tuple[Schedule, ...]:
    """One for each order that the compiler tries."""
    workload, kernels = compiled(workload, profile, batch)
    orders = profile.scheduler(workload, kernels, updates is Updates.AT_ONCE, profile, batch)
    return tuple(_Liveness(workload, profile, updates, order).schedule(batch) for order in orders)


class _Liveness:
    """Births and deaths over a flat sequence of kernels: a loop's kernels stand where the loop is."""

    def __init__(self, workload: Workload, profile: Profile, updates: Updates, kernels: Sequence[Kernel]) -> None:
        self.workload, self.profile, self.updates, self.kernels = workload, profile, updates, kernels
        self.by_memory = profile.scheduler.name == _CHOOSES_BY_MEMORY
        self.breadth_first = profile.scheduler.name == _BREADTH_FIRST
        self.birth: dict[int, int] = {}
        self.death: dict[int, int] = {}
        self.scratch: list[tuple[int, int, int, int, str]] = []
        self.labels: list[str] = []
        self.flat: list[Kernel] = []
        self.runs: list[int] = []
        self.spans: list[int] = []
        self.copies: dict[int, int] = {}
        self.copied: dict[int, tuple[int, int]] = {}
        self.first_read: dict[int, int] = {}
        self.states = {v.tensor for v in workload.variables}
        self.donated = {v.result: v.tensor for v in workload.variables}
        self.metrics = {v.result for v in workload.variables if v.role not in _UPDATED}
        self.resident = self.states | set(workload.inputs)
        self.purposes = _purposes(workload)
        self.rooms: list[tuple[int, int]] = []

    def schedule(self, batch: int) -> Schedule:
        for kernel in self.kernels:
            self.spans.append(len(self.labels))
            self._run((kernel,))
        if not (self.by_memory and self.updates is Updates.AT_ONCE):
            self._apply("early-loop-stacks")
        self._keep_outputs()
        if self.updates is Updates.SELECTED:
            self._apply("gradient-averages")
        if "state-layout-copies" in self.profile and self.updates is Updates.AT_ONCE:
            self.copies = turned(self.workload, self.flat)
        places = self._lend() if "lent-state-buffers" in self.profile and self.updates is Updates.AT_ONCE else None
        if places is None:
            self._donate()
            places = rooms(self.rooms) if self.rooms else None
        self._share()
        self._apply("dot-workspace")
        if self.updates is Updates.SELECTED:
            self._apply("sums-beside-choices")
        stored = storage(self.workload, self.profile)
        return Schedule(
            tuple(self.kernels),
            self._temporaries(),
            tuple(self.labels),
            self.workload.tensors,
            stored,
            batch,
            self._moved(),
            self.profile.on_chip_bytes,
            places,
            frozenset(self.copied),
            "heap-packing" in self.profile,
        )

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

    def _apply(self, name: str) -> None:
        if name in self.profile:
            self.profile.rules[name](self)

    def gradient_bytes(self) -> int:
        """One set of gradients, each as its variable is."""
        trained = (v.tensor for v in self.workload.variables if v.role is Role.TRAINABLE)
        return round(sum(self.workload.tensors[tensor].bytes.fixed for tensor in trained))

    def _bear(self, kernel: Kernel, place: int) -> None:
        for write in kernel.writes:
            self.birth.setdefault(write, place)
            self.death.setdefault(write, place)

    def _keep_outputs(self) -> None:
        last = len(self.labels) - 1
        for output in self.workload.outputs:
            if output in self.birth:
                self.death[output] = last

    def _donate(self) -> None:
        """A new state takes its old state's place; until that one's last reader is done it stands beside it.

        Where a choice between both follows, it stands beside it to the end.
        """
        last = len(self.labels) - 1
        for result, old in self.donated.items():
            if result in self.birth and self.updates is Updates.SELECTED and result not in self.metrics:
                self.death[result] = last
            elif result in self.birth:
                if "output-buffers" in self.profile and old not in self.death:
                    self.rooms.append((result, self.birth[result]))
                self.death[result] = self.death.get(old, -1) - 1
                if self.death[result] < self.birth[result]:
                    del self.birth[result]
                elif self.by_memory and self.updates is Updates.AT_ONCE:
                    self.copied[old] = (self.first_read[old], self.death[old])
                    del self.birth[result]

    def _lend(self) -> Places:
        """A new state is written in its old state's place; where that one is read otherwise, it is copied first."""
        found = StatePlaces(self.kernels, self.spans)
        for result, old in self.donated.items():
            if result in self.birth:
                found.note(old, result, self.birth.pop(result), self.death.get(old, -1))
        self.copies = found.copies
        return found.places()

    def _share(self) -> None:
        """What works in place takes the place of an operand that nobody reads afterwards."""
        for place, kernel in enumerate(self.flat):
            free = [read for read in self._replaceable(kernel) if self._dies_at(read, place)]
            for write in kernel.writes if free else ():
                made = self.workload.tensors[write]
                match = next((read for read in free if self._is_alike(read, made)), None)
                if match is not None and write in self.birth and self.birth[write] == place:
                    self._take_place(write, match, place)
                    free.remove(match)

    def _replaceable(self, kernel: Kernel) -> Sequence[int]:
        """What this kernel's result may take the place of, once nobody reads it any more."""
        if kernel.op.kind in _IN_PLACE:
            return kernel.reads
        stands = self.updates is Updates.SELECTED and in_update(kernel) and not self.breadth_first
        return () if stands else kernel.in_place

    def _take_place(self, write: int, match: int, place: int) -> None:
        """One buffer, or two of which one ends where the other begins."""
        self.death[match] = place - 1
        if self.breadth_first:
            self.birth[write] = self.birth.pop(match)

    def _is_alike(self, tensor: int, made: Tensor) -> bool:
        return self.workload.tensors[tensor].bytes == made.bytes

    def _dies_at(self, tensor: int, place: int) -> bool:
        return tensor not in self.resident and tensor in self.birth and self.death[tensor] == place

    def _moved(self) -> Moved:
        """Of a tensor that a kernel picks a part of or fills a part in, no more than that part moves."""
        rows: list[tuple[int, int, int]] = []
        for place, (kernel, runs) in enumerate(zip(self.flat, self.runs, strict=True)):
            picked = dict(kernel.picked)
            ends = kernel.reads if kernel.op.primitive in _FILLS else (*kernel.reads, *kernel.writes)
            rows += [(place, picked.get(end, end), runs) for end in ends]
        columns = np.asarray(rows, np.int64).reshape(-1, 3)
        return Moved(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.float64))

    def _temporaries(self) -> Temporaries:
        copies = Purpose.WEIGHT_COPIES.value
        rows: list[tuple[int, int, int, int, str]] = [(old, 0, end, 0, copies) for old, end in self.copies.items()]
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


@rule("early-loop-stacks", source="programs compiled for A100 and CPU")
def early_loop_stacks(live: _Liveness) -> None:
    """Allocate the arrays into which loops write an element an iteration when the program starts: they are zeros first.

    Breadth-first order does so in the backward pass, too.
    """
    early = frozenset(Phase) if live.breadth_first else {Phase.FORWARD}
    loops = (kernel for kernel in live.flat if kernel.op.kind is Kind.LOOP and kernel.op.phase in early)
    for kernel in loops:
        for write in kernel.writes:
            shape = live.workload.tensors[write].shape
            if write in live.birth and shape and shape[0] == Affine(kernel.op.repeat):
                live.birth[write] = 0


@rule("gradient-averages", source="programs compiled for A100 and CPU: Keras's gradient accumulation")
def gradient_averages(live: _Liveness, *, sets: int) -> None:
    """Add sets of gradients beside those that accumulation chooses from: their average, copies of the sums so far."""
    first = next((place for place, kernel in enumerate(live.flat) if in_update(kernel)), None)
    if first is not None:
        place = max(0, first - 1)
        live.scratch.append((-1, place, place, sets * live.gradient_bytes(), Purpose.GRADIENTS.value))


@rule("sums-beside-choices", source="programs compiled for A100: loss scaling with gradient accumulation")
def sums_beside_choices(live: _Liveness) -> None:
    """Add unscaled gradients and their new sums beside the old sums while loss scaling chooses."""
    chosen = (place for place, one in enumerate(live.flat) if one.op.kind is Kind.BRANCH and in_update(one))
    first = next(chosen, None)
    if first is not None:
        size = 2 * live.gradient_bytes()
        live.scratch.append((-1, first, len(live.labels) - 1, size, Purpose.GRADIENTS.value))


@rule("dot-workspace", source="cuBLAS workspace of XLA:GPU before Ampere")
def dot_workspace(live: _Liveness, *, size: int) -> None:
    """Add the scratch of a library's matrix product."""
    for place, kernel in enumerate(live.flat):
        if kernel.op.kind is Kind.DOT:
            live.scratch.append((-1, place, place, size, Purpose.WORKSPACE.value))


def _purposes(workload: Workload) -> dict[int, Purpose]:
    """Gradients go from backward to update in the shape of a variable; weight copies are made of variables alone."""
    shapes = {workload.tensors[v.tensor].shape for v in workload.variables if v.role is Role.TRAINABLE}
    from_variables = {v.tensor for v in workload.variables}
    found: dict[int, Purpose] = {}
    backward: set[int] = set()
    renamed: dict[int, int] = {}
    for op in workload.ops:
        if op.phase is Phase.UPDATE:
            for read in backward.intersection(op.reads):
                found.update(dict.fromkeys(_names(read, renamed), Purpose.GRADIENTS))
        else:
            _note_copies(workload, op, from_variables, found)
        if op.phase is Phase.BACKWARD:
            backward.update(write for write in op.writes if workload.tensors[write].shape in shapes)
            if op.kind is Kind.VIEW or op.primitive == "transpose":  # a product gives a kernel's gradient transposed
                renamed[op.writes[0]] = op.reads[0]
    return found


def _names(tensor: int, renamed: dict[int, int]) -> Iterator[int]:
    """A tensor, and what it is a view or a transpose of."""
    yield tensor
    while tensor in renamed:
        tensor = renamed[tensor]
        yield tensor


def _note_copies(workload: Workload, op: Op, from_variables: set[int], found: dict[int, Purpose]) -> None:
    if op.reads and from_variables.issuperset(op.reads) and op.kind is not Kind.REDUCE:
        from_variables.update(op.writes)
        # What grows with the batch is no copy of a weight: numbers drawn from a seed, a bias broadcast over samples.
        copies = [write for write in op.writes if all(dim.constant for dim in workload.tensors[write].shape)]
        found.update(dict.fromkeys(copies, Purpose.WEIGHT_COPIES))
