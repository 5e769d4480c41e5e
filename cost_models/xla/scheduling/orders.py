"""Returns the kernel orders a compiler may choose: program order or greedy by memory (TPU), breadth first (CPU).

- Program order: each update runs as soon as its gradient exists and its variable is no longer read.
- Breadth first: each kernel runs as soon as it can, in the order in which kernels become ready.
- Greedy: of the ready kernels, the kernel that frees most and allocates least.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from cost_models.workload.workload import CONVERT, Kind, Phase, Workload
from cost_models.xla.dataflow import MATRIX_RANK
from cost_models.xla.fusion.kernel import Kernel, in_update
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_COMPUTING = frozenset({Kind.ELEMENTWISE, Kind.REDUCE})
_AT_ONCE = frozenset({Kind.BROADCAST, Kind.COPY})
"""Kernels that wait for nothing or for a constant run as soon as they can, though they free nothing."""


@rule("list-scheduler", source="ListMemoryScheduler; program order where updates wait for the end of the backward pass")
def list_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return program order and, where updates run as soon as they can, the greedy order."""
    found = [program_order(workload, kernels, together=not at_once)]
    return [*found, greedy_order(workload, kernels, batch)] if at_once else found


@rule("breadth-first-scheduler", source="BFScheduler of XLA:CPU")
def breadth_first_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return the order in which kernels become ready, with updates last unless they run as soon as they can."""
    order = breadth_first_order(workload, kernels)
    return [order if at_once else sorted(order, key=in_update)]


def program_order(workload: Workload, kernels: Sequence[Kernel], *, together: bool) -> list[Kernel]:
    """Return the kernels as written, with updates right after their gradients unless all updates run together."""
    if together:
        return list(kernels)
    produced: dict[int, float] = {}
    last_read: dict[int, float] = {}
    for index, kernel in enumerate(kernels):
        if not in_update(kernel):
            produced.update(dict.fromkeys(kernel.writes, index))
            last_read.update(dict.fromkeys(kernel.reads, index))
    source = {v.result: v.tensor for v in workload.variables}
    keys: list[float] = []
    for index, kernel in enumerate(kernels):
        key = float(index)
        if in_update(kernel):
            after = [produced.get(read, -1) for read in kernel.reads]
            after += [last_read.get(source[write], -1) for write in kernel.writes if write in source]
            key = max(after, default=-1) + 0.5
            produced.update(dict.fromkeys(kernel.writes, key))
        keys.append(key)
    order = sorted(range(len(kernels)), key=lambda index: (keys[index], index))
    return [kernels[index] for index in order]


def greedy_order(workload: Workload, kernels: Sequence[Kernel], batch: int) -> list[Kernel]:
    """Return the order of list scheduling by bytes freed less bytes allocated, at a local batch.

    Equal kernels run in program order.
    """
    return _Greedy(workload, kernels, batch).order()


def breadth_first_order(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels first ready, first run: kernels that wait for state and batch alone come first."""
    arguments = {v.tensor: index for index, v in enumerate(workload.variables)}
    arguments |= {end: len(arguments) + index for index, end in enumerate(workload.inputs)}
    writer = {write: index for index, kernel in enumerate(kernels) for write in kernel.writes}
    waits = [len({writer[read] for read in kernel.reads if read in writer}) for kernel in kernels]
    followers: list[dict[int, None]] = [{} for _ in kernels]
    for index, kernel in enumerate(kernels):
        for read in kernel.reads:
            if read in writer:
                followers[writer[read]][index] = None
    free = [index for index, count in enumerate(waits) if not count]
    queue = deque(sorted(free, key=lambda index: max((arguments.get(r, -1) for r in kernels[index].reads), default=-1)))
    chosen: list[Kernel] = []
    while queue:
        index = queue.popleft()
        chosen.append(kernels[index])
        for follower in sorted(followers[index], key=lambda one: (_turn(workload, kernels[one]), one)):
            waits[follower] -= 1
            if not waits[follower]:
                queue.append(follower)
    return chosen


def _turn(workload: Workload, kernel: Kernel) -> int:
    """Return the turn of a kernel among kernels that wait for the same kernel.

    XLA:CPU runs gradients of values first and gradients of weights last.
    """
    if kernel.op.phase is not Phase.BACKWARD:
        return 0
    if kernel.op.kind.is_product:
        if all(dim.constant for write in kernel.writes for dim in workload.tensors[write].shape):
            return 1
        # More dimensions are viewed as a matrix first.
        viewed = kernel.op.kind is Kind.DOT and len(workload.tensors[kernel.writes[0]].shape) > MATRIX_RANK
        return 0 if viewed else -2
    computes = kernel.op.kind in _COMPUTING and kernel.op.primitive != CONVERT
    return -1 if computes else 0


class _Greedy:
    def __init__(self, workload: Workload, kernels: Sequence[Kernel], batch: int) -> None:
        self.kernels = kernels
        self.size = [size.at(batch) for size in workload.sizes]
        results = {v.result: v.tensor for v in workload.variables}
        self.free_of_charge = results.keys() | {v.tensor for v in workload.variables} | set(workload.inputs)
        self.lasting = set(workload.outputs)
        self.unread: dict[int, int] = {}
        self.waits = [0] * len(kernels)
        self.followers: list[list[int]] = [[] for _ in kernels]
        self._link(results)

    def _link(self, results: dict[int, int]) -> None:
        """Note that readers wait for writers, and a variable's new value for the readers of the old value."""
        writer = {write: index for index, kernel in enumerate(self.kernels) for write in kernel.writes}
        readers: dict[int, list[int]] = {}
        for index, kernel in enumerate(self.kernels):
            for read in kernel.reads:
                self.unread[read] = self.unread.get(read, 0) + 1
                readers.setdefault(read, []).append(index)
                if read in writer:
                    self._wait(index, writer[read])
        for result, old in results.items():
            if result in writer:
                for reader in readers.get(old, ()):
                    if not in_update(self.kernels[reader]):
                        self._wait(writer[result], reader)

    def _wait(self, index: int, on: int) -> None:
        if index != on:
            self.waits[index] += 1
            self.followers[on].append(index)

    def order(self) -> list[Kernel]:
        ready = [index for index, count in enumerate(self.waits) if not count]
        chosen: list[Kernel] = []
        while ready:
            index = max(ready, key=lambda candidate: (self._gain(candidate), -candidate))
            ready.remove(index)
            chosen.append(self.kernels[index])
            for read in self.kernels[index].reads:
                self.unread[read] -= 1
            for follower in self.followers[index]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    ready.append(follower)
        return chosen

    def _gain(self, index: int) -> float:
        """Return the bytes that a kernel frees less the bytes that it allocates."""
        kernel = self.kernels[index]
        if kernel.op.kind in _AT_ONCE:
            return math.inf
        freed = sum(
            self.size[read]
            for read in kernel.reads
            if self.unread[read] == 1 and read not in self.free_of_charge and read not in self.lasting
        )
        return freed - sum(self.size[write] for write in kernel.writes if write not in self.free_of_charge)
