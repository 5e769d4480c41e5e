"""Returns the three kernel orders that XLA:GPU's memory scheduler tries; buffer liveness takes the smallest of them.

All three start from the results of the program, because XLA has no order of its own before it schedules:

- Post-order: everything right before its first reader, operands from left to right.
- Depth first: the same, but of the operands of a kernel the operand first on which most other kernels depend.
- List: of the ready kernels, the kernel that frees most and allocates least.

In the first two orders the gradient of a late layer's weights runs after everything that leads to an early layer's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import ZEROS_FOR_POOLING
from cost_models.xla.fusion.kernel import Kernel, in_update
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule
from cost_models.xla.scheduling.orders import program_order

_ZEROS = Op(Kind.BROADCAST, "broadcast_in_dim", (), (), layer="zeros")
_Rank = Callable[[int], tuple[float, ...]]


@rule("memory-scheduler", source="hlo_memory_scheduler.cc of XLA:GPU: ListMemoryScheduler, DFS, post-order")
def memory_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return the three orders where updates run as soon as they can, else program order."""
    if not at_once:
        return [program_order(workload, kernels, together=True)]
    return list(orders(workload, kernels, batch))


def orders(workload: Workload, kernels: Sequence[Kernel], batch: int) -> Iterator[list[Kernel]]:
    """Yield the kernels in each of the three orders: list, depth first, post-order."""
    kernels = _with_zeros(workload, kernels)
    graph = _KernelGraph(workload, kernels, batch)
    for order in (graph.by_list(), graph.depth_first(graph.by_weight()), graph.depth_first(None)):
        yield [kernels[index] for index in order]


def _with_zeros(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels with one kernel for all zeros of a shape.

    Arrays into which loops write an element an iteration are zeros first.
    """
    made: list[Kernel] = []
    zeros: dict[Tensor, int] = {}
    for kernel in kernels:
        stacks = tuple(write for write in kernel.writes if _is_stack(workload, kernel.op, write))
        constant = kernel.op.kind is Kind.BROADCAST and not kernel.reads and not _is_made_with_relu(kernel)
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
class _KernelGraph:
    """Dependencies of kernels, by index.

    reads   the kernels whose results each kernel reads, left to right
    before  the kernels that each kernel waits for: those of `reads`, then others
    users   by how many kernels each kernel's results are read
    ends    the kernels that write what outlives the program
    """

    workload: Workload
    kernels: Sequence[Kernel]
    batch: int
    reads: list[list[int]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = [size.at(self.batch) for size in self.workload.sizes]
        writer: dict[int, list[int]] = {}
        for index, kernel in enumerate(self.kernels):
            for write in kernel.writes:
                writer.setdefault(write, []).append(index)
        self.users = [0] * len(self.kernels)
        rates = self._rates()
        for index, kernel in enumerate(self.kernels):
            made = dict.fromkeys(one for read in _operands(kernel) for one in _last(writer.get(read, ()), index))
            made.update(dict.fromkeys(rates[read] for read in kernel.reads if rates.get(read, index) != index))
            self.reads.append(list(made))
            for one in made:
                self.users[one] += 1
        self.lasting = frozenset((*self.workload.outputs, *(v.result for v in self.workload.variables)))
        lasting = (*self.workload.outputs, *(v.result for v in self.workload.variables))
        self.ends = list(dict.fromkeys(one for end in lasting for one in writer.get(end, ())[-1:]))
        for end in self.ends:
            self.users[end] += 1
        self.before = self._with_readers_first(writer)

    def _rates(self) -> dict[int, int]:
        """Return the kernel that works out a rate for all updates, by the counter of updates that it depends on.

        That is the kernel that updates a variable of one element, where there is one: XLA makes one kernel of both.
        """
        tensors = self.workload.tensors
        counters = {v.tensor for v in self.workload.variables if _is_counter(tensors[v.tensor])}
        found: dict[int, int] = {}
        for index, kernel in enumerate(self.kernels):
            small = all(tensors[write].shape and tensors[write].elements == Affine(1) for write in kernel.writes)
            if in_update(kernel) and small:
                for read in counters.intersection(kernel.reads):
                    found.setdefault(read, index)
        return found

    def _with_readers_first(self, writer: dict[int, list[int]]) -> list[list[int]]:
        """Return `reads` with the readers of old values before the kernels that write new values in their buffers.

        List scheduling ignores these readers: the old value is copied for them (`buffers/liveness.py`).
        """
        before = [list(made) for made in self.reads]
        readers: dict[int, list[int]] = {}
        for index, kernel in enumerate(self.kernels):
            if not in_update(kernel):
                for read in kernel.reads:
                    readers.setdefault(read, []).append(index)
        for variable in self.workload.variables:
            for index in writer.get(variable.result, ())[-1:]:
                before[index] += [one for one in readers.get(variable.tensor, ()) if one != index]
        return before

    def depth_first(self, rank: _Rank | None) -> list[int]:
        """Return everything before its readers; operands in their order, or by rank."""
        order: list[int] = []
        done, begun = [False] * len(self.kernels), [False] * len(self.kernels)
        stack = [*range(len(self.kernels) - 1, -1, -1), *self._ranked(self.ends, rank)]
        stack += [index for index, kernel in enumerate(self.kernels) if _is_made_with_relu(kernel)][::-1]
        while stack:
            index = stack[-1]
            if done[index] or begun[index]:
                stack.pop()
                if not done[index]:
                    done[index] = True
                    order.append(index)
                continue
            begun[index] = True
            stack += [one for one in self._ranked(self.before[index], rank) if not begun[one]]
        return order

    def _ranked(self, indices: Sequence[int], rank: _Rank | None) -> list[int]:
        """Return kernels as they go on a stack: the first on top."""
        return list(indices)[::-1] if rank is None else sorted(indices, key=rank, reverse=True)

    def by_weight(self) -> _Rank:
        """Return the rank of kernels: by readers beyond the first upstream, then by bytes (DFSMemoryScheduler)."""
        extra, sizes = [0] * len(self.kernels), [0.0] * len(self.kernels)
        most = self._instructions()
        outside = self._readers_of_arguments()
        so_far = 0.0
        for index in self.depth_first(None):
            own = sum(self.size[write] for write in self.kernels[index].writes)
            so_far += own
            above = max(0, self.users[index] - 1) + sum(extra[one] for one in self.reads[index])
            above += sum(outside.get(read, 0) for read in self.kernels[index].reads)
            extra[index] = min(above, most)
            sizes[index] = min(own + sum(sizes[one] for one in self.reads[index]), so_far)
        return lambda index: (-extra[index], -sizes[index], index)

    def _readers_of_arguments(self) -> dict[int, int]:
        """Return by how many kernels beyond the first each state and input is read, single numbers left out."""
        made = {v.tensor for v in self.workload.variables} | set(self.workload.inputs)
        found: dict[int, int] = {}
        for kernel in self.kernels:
            for read in kernel.reads:
                if read in made and self.workload.tensors[read].shape:
                    found[read] = found.get(read, -1) + 1
        return found

    def _instructions(self) -> int:
        """Return the instructions of XLA's program: kernels, selections of one of several results, and arguments."""
        results = sum(len(one.writes) for one in self.kernels if len(one.writes) > 1 or one.op.kind is Kind.CONV)
        outside = len(self.workload.variables) + len(self.workload.inputs)
        return len(self.kernels) + results + outside

    def by_list(self) -> list[int]:
        """Return list scheduling by bytes freed less bytes defined, then by readers (ListMemoryScheduler)."""
        return _List(self).order()


def _operands(kernel: Kernel) -> Sequence[int]:
    """Return the tensors that a kernel reads, left to right.

    Where loss scaling chooses, XLA makes one selection a variable of the choice, which reads the gradient before the
    flag that all gradients are finite.
    """
    chooses = kernel.op.kind is Kind.BRANCH and in_update(kernel)
    return (*kernel.reads[1:], *kernel.reads[:1]) if chooses else kernel.reads


def _is_counter(tensor: Tensor) -> bool:
    return not tensor.shape and tensor.dtype in ("int32", "int64")


def _is_made_with_relu(kernel: Kernel) -> bool:
    """Return whether a kernel writes zeros that XLA makes along with the ReLU of the same shape, in one kernel."""
    return kernel.op.layer == ZEROS_FOR_POOLING and kernel.op.phase is Phase.FORWARD


def _last(writers: Sequence[int], index: int) -> Sequence[int]:
    """Return the last of these kernels but the kernel at `index`: a loop reads the zeros that it writes into."""
    return [one for one in writers if one != index][-1:]


class _List:
    def __init__(self, graph: _KernelGraph) -> None:
        self.graph = graph
        self.free = {v.tensor for v in graph.workload.variables} | set(graph.workload.inputs) | graph.lasting
        self.unread: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.followers: list[list[int]] = [[] for _ in graph.kernels]
        self.waits = [0] * len(graph.kernels)
        self.ready: list[tuple[tuple[float, int], int, int]] = []
        self.keys: dict[int, tuple[tuple[float, int], int, int]] = {}
        self.entered = 0
        for index, kernel in enumerate(graph.kernels):
            for read in kernel.reads:
                self.unread[read] = self.unread.get(read, 0) + 1
                self.readers.setdefault(read, []).append(index)
            for one in graph.reads[index]:
                self.followers[one].append(index)
                self.waits[index] += 1

    def order(self) -> list[int]:
        """Return the order in which the last of the ready kernels with the highest priority runs."""
        order: list[int] = []
        for index, count in enumerate(self.waits):
            if not count:
                self._enter(index)
        while self.ready:
            index = self.ready.pop()[2]
            del self.keys[index]
            order.append(index)
            self._note_reads(index)
            for follower in self.followers[index]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    self._enter(follower)
        return order

    def _enter(self, index: int) -> None:
        """Add a kernel to the ready kernels, which are sorted by priority and by the order in which they enter."""
        self.entered += 1
        self.keys[index] = (self._priority(index), self.entered, index)
        bisect.insort(self.ready, self.keys[index])

    def _note_reads(self, index: int) -> None:
        """Enter the last readers of a kernel's operands again: they free these now."""
        for read in self.graph.kernels[index].reads:
            self.unread[read] -= 1
            if self.unread[read] == 1:
                for reader in self.readers[read]:
                    if reader in self.keys:
                        self.ready.remove(self.keys[reader])
                        self._enter(reader)

    def _priority(self, index: int) -> tuple[float, int]:
        kernel, size = self.graph.kernels[index], self.graph.size
        if _is_made_with_relu(kernel):
            return math.inf, 0
        freed = sum(size[read] for read in kernel.reads if self.unread[read] == 1 and read not in self.free)
        made = sum(size[write] for write in kernel.writes if write not in kernel.reads)
        return freed - made, self.graph.users[index]
