"""The three orders of kernels that XLA tries on GPUs, and takes the one that needs least memory of.

They are those of its `hlo_memory_scheduler.cc`. All start from what the program hands back, since XLA keeps no order
of its own before it schedules:

- post-order: everything right before what reads it first, operands from left to right;
- depth first: the same, but of the operands of a kernel that one first on which most other kernels hang;
- list: of the kernels that can run, the one that frees most and allocates least.

In the first two the gradient of a late layer's weights is worked out after everything that leads to an early layer's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import ZEROS_FOR_POOLING
from cost_models.xla.fusion.fusion import Kernel, in_update
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule
from cost_models.xla.scheduling.orders import program_order
from cost_models.xla.scheduling.reversed_kernels import waiting

_ZEROS = Op(Kind.BROADCAST, "broadcast_in_dim", (), (), layer="zeros")
_Rank = Callable[[int], tuple[float, ...]]


@rule("memory-scheduler", source="hlo_memory_scheduler.cc of XLA:GPU: ListMemoryScheduler, DFS, post-order")
def memory_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return the orders that XLA:GPU tries: three where updates come as soon as they can, else program order."""
    if not at_once:
        return [program_order(workload, kernels, together=True)]
    return list(orders(workload, kernels, profile, batch))


def orders(workload: Workload, kernels: Sequence[Kernel], profile: Profile, batch: int) -> Iterator[list[Kernel]]:
    """Yield the kernels in each of the three orders: list, depth first, post-order."""
    kernels = _with_zeros(workload, kernels)
    if "sibling-pooling" in profile:
        kernels = profile.rules["sibling-pooling"](workload, kernels)
    graph = _Graph(workload, kernels, batch, waiting if "reversed-kernels" in profile else None)
    for order in (graph.by_list(), graph.depth_first(graph.by_weight()), graph.depth_first(None)):
        yield [kernels[place] for place in order]


def _with_zeros(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Arrays into which loops write an element an iteration are zeros first, and all zeros of one shape one kernel."""
    made: list[Kernel] = []
    zeros: dict[Tensor, int] = {}
    for kernel in kernels:
        stacks = tuple(write for write in kernel.writes if _is_stack(workload, kernel.op, write))
        constant = kernel.op.kind is Kind.BROADCAST and not kernel.reads and not _is_at_once(kernel)
        for write in kernel.writes if constant else stacks:
            like = workload.tensors[write]
            if like not in zeros:
                zeros[like] = len(made)
                made.append(Kernel(_ZEROS, (), (write,), Affine()))
            else:
                same = made[zeros[like]]
                made[zeros[like]] = replace(same, writes=(*same.writes, write), fused=same.fused + 1)
        if not constant:
            made.append(replace(kernel, reads=(*kernel.reads, *stacks)) if stacks else kernel)
    return made


def _is_stack(workload: Workload, op: Op, write: int) -> bool:
    shape = workload.tensors[write].shape
    return op.kind is Kind.LOOP and bool(shape) and shape[0] == Affine(op.repeat)


@dataclass
class _Graph:
    """Who reads whom. `before` are the kernels that each waits for: those it reads of, left to right, then others."""

    workload: Workload
    kernels: Sequence[Kernel]
    batch: int
    waiting: Callable[[Workload, Sequence[Kernel]], dict[int, int]] | None = None
    reads: list[list[int]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = [size.at(self.batch) for size in self.workload.sizes]
        writer: dict[int, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            for write in kernel.writes:
                writer.setdefault(write, []).append(place)
        self.users = [0] * len(self.kernels)
        rates = self._rates()
        updates = self.waiting(self.workload, self.kernels) if self.waiting else {}
        for place, kernel in enumerate(self.kernels):
            made = dict.fromkeys(one for read in _operands(kernel) for one in _before(writer.get(read, ()), place))
            made.update(dict.fromkeys(rates[read] for read in kernel.reads if rates.get(read, place) != place))
            if place in updates:
                made[updates[place]] = None
            self.reads.append(list(made))
            for one in made:
                self.users[one] += 1
        lasting = (*self.workload.outputs, *(v.result for v in self.workload.variables))
        self.lasting = frozenset(lasting)
        self.ends = list(dict.fromkeys(one for end in lasting for one in writer.get(end, ())[-1:]))
        for end in self.ends:
            self.users[end] += 1
        self.before = self._with_readers_first(writer)

    def _rates(self) -> dict[int, int]:
        """By the counter of updates that a rate depends on: the kernel that works this rate out for all updates.

        That is the kernel that updates a variable of one element, where there is one: XLA makes one kernel of both.
        """
        tensors = self.workload.tensors
        counters = {v.tensor for v in self.workload.variables if _is_counter(tensors[v.tensor])}
        found: dict[int, int] = {}
        for place, kernel in enumerate(self.kernels):
            small = all(tensors[write].shape and tensors[write].elements == Affine(1) for write in kernel.writes)
            if in_update(kernel) and small:
                for read in counters.intersection(kernel.reads):
                    found.setdefault(read, place)
        return found

    def _with_readers_first(self, writer: dict[int, list[int]]) -> list[list[int]]:
        """A new value takes the place of the old one, so it waits for those who read that.

        List scheduling does not ask who reads that: it copies it for them (`liveness.py`).
        """
        before = [list(made) for made in self.reads]
        readers: dict[int, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            if not in_update(kernel):
                for read in kernel.reads:
                    readers.setdefault(read, []).append(place)
        for variable in self.workload.variables:
            for place in writer.get(variable.result, ())[-1:]:
                before[place] += [one for one in readers.get(variable.tensor, ()) if one != place]
        return before

    def depth_first(self, rank: _Rank | None) -> list[int]:
        """Everything before what reads it; operands in their order, or by rank."""
        order: list[int] = []
        done, begun = [False] * len(self.kernels), [False] * len(self.kernels)
        stack = [*range(len(self.kernels) - 1, -1, -1), *self._ranked(self.ends, rank)]
        stack += [place for place, kernel in enumerate(self.kernels) if _is_at_once(kernel)][::-1]
        while stack:
            place = stack[-1]
            if done[place] or begun[place]:
                stack.pop()
                if not done[place]:
                    done[place] = True
                    order.append(place)
                continue
            begun[place] = True
            stack += [one for one in self._ranked(self.before[place], rank) if not begun[one]]
        return order

    def _ranked(self, places: Sequence[int], rank: _Rank | None) -> list[int]:
        """As they go on a stack: the first on top."""
        return list(places)[::-1] if rank is None else sorted(places, key=rank, reverse=True)

    def by_weight(self) -> _Rank:
        """Most readers beyond the first upstream of a kernel come first, then most bytes (DFSMemoryScheduler)."""
        extra, sizes = [0] * len(self.kernels), [0.0] * len(self.kernels)
        most = self._instructions()
        outside = self._outside()
        so_far = 0.0
        for place in self.depth_first(None):
            own = sum(self.size[write] for write in self.kernels[place].writes)
            so_far += own
            above = max(0, self.users[place] - 1) + sum(extra[one] for one in self.reads[place])
            above += sum(outside.get(read, 0) for read in self.kernels[place].reads)
            extra[place] = min(above, most)
            sizes[place] = min(own + sum(sizes[one] for one in self.reads[place]), so_far)
        return lambda place: (-extra[place], -sizes[place], place)

    def _outside(self) -> dict[int, int]:
        """Of state and inputs that are no single numbers: by how many kernels beyond the first they are read."""
        made = {v.tensor for v in self.workload.variables} | set(self.workload.inputs)
        found: dict[int, int] = {}
        for kernel in self.kernels:
            for read in kernel.reads:
                if read in made and self.workload.tensors[read].shape:
                    found[read] = found.get(read, -1) + 1
        return found

    def _instructions(self) -> int:
        """Of XLA's program: kernels, what takes one of several results, and what comes from outside."""
        results = sum(len(one.writes) for one in self.kernels if len(one.writes) > 1 or one.op.kind is Kind.CONV)
        outside = len(self.workload.variables) + len(self.workload.inputs)
        return len(self.kernels) + results + outside

    def by_list(self) -> list[int]:
        """List scheduling by bytes freed less bytes defined, then by number of readers (ListMemoryScheduler)."""
        return _List(self).order()


def _operands(kernel: Kernel) -> Sequence[int]:
    """What a kernel reads, left to right.

    Where loss scaling chooses, XLA makes one selection a variable of the choice, which reads the gradient before the
    flag that all gradients are finite.
    """
    chooses = kernel.op.kind is Kind.BRANCH and in_update(kernel)
    return (*kernel.reads[1:], *kernel.reads[:1]) if chooses else kernel.reads


def _is_counter(tensor: Tensor) -> bool:
    return not tensor.shape and tensor.dtype in ("int32", "int64")


def _is_at_once(kernel: Kernel) -> bool:
    """What XLA makes along with the ReLU of the same shape, in one kernel."""
    return kernel.op.layer == ZEROS_FOR_POOLING and kernel.op.phase is Phase.FORWARD


def _before(writers: Sequence[int], place: int) -> Sequence[int]:
    """The last of these kernels, the one at `place` left out: a loop reads the zeros that it writes into."""
    return [one for one in writers if one != place][-1:]


class _List:
    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.free = {v.tensor for v in graph.workload.variables} | set(graph.workload.inputs) | graph.lasting
        self.unread: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.followers: list[list[int]] = [[] for _ in graph.kernels]
        self.waits = [0] * len(graph.kernels)
        for place, kernel in enumerate(graph.kernels):
            for read in kernel.reads:
                self.unread[read] = self.unread.get(read, 0) + 1
                self.readers.setdefault(read, []).append(place)
            for one in graph.reads[place]:
                self.followers[one].append(place)
                self.waits[place] += 1

    def order(self) -> list[int]:
        """Ready kernels are kept sorted; the last of those with the highest priority runs."""
        order: list[int] = []
        ready: list[tuple[tuple[float, int], int, int]] = []
        keys: dict[int, tuple[tuple[float, int], int, int]] = {}
        entered = 0

        def enter(place: int) -> None:
            nonlocal entered
            entered += 1
            keys[place] = (self._priority(place), entered, place)
            bisect.insort(ready, keys[place])

        for place, count in enumerate(self.waits):
            if not count:
                enter(place)
        while ready:
            place = ready.pop()[2]
            del keys[place]
            order.append(place)
            for read in self.graph.kernels[place].reads:
                self.unread[read] -= 1
                if self.unread[read] == 1:
                    for reader in self.readers[read]:
                        if reader in keys:
                            ready.remove(keys[reader])
                            enter(reader)
            for follower in self.followers[place]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    enter(follower)
        return order

    def _priority(self, place: int) -> tuple[float, int]:
        kernel, size = self.graph.kernels[place], self.graph.size
        if _is_at_once(kernel):
            return math.inf, 0
        freed = sum(size[read] for read in kernel.reads if self.unread[read] == 1 and read not in self.free)
        made = sum(size[write] for write in kernel.writes if write not in kernel.reads)
        return freed - made, self.graph.users[place]
