"""In which order kernels run. XLA tries several orders and takes the one that needs least memory; so does
`liveness.py`.

- program order, each update as soon as its gradient is there and its variable is no longer read;
- breadth first: as soon as it can run, in the order in which that comes about (XLA:CPU, which wants much at once);
- greedy: of the kernels that can run, always the one that frees most and allocates least (XLA's ListMemoryScheduler).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from cost_models.workload.workload import CONVERT, PADDED_COPY, Kind, Phase, Workload
from cost_models.xla.fusion.fusion import Kernel, in_update
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_MATRIX = 2  # dimensions; what has more is viewed as one first
_COMPUTING = frozenset({Kind.ELEMENTWISE, Kind.REDUCE})
_AT_ONCE = frozenset({Kind.BROADCAST, Kind.COPY})
"""What waits for nothing or for a constant runs as soon as it can, though it frees nothing."""


@rule("list-scheduler", source="ListMemoryScheduler; program order where updates wait for the end of the backward pass")
def list_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return program order and, where updates come as soon as they can, the greedy order."""
    found = [program_order(workload, kernels, together=not at_once)]
    return [*found, greedy_order(workload, kernels, batch)] if at_once else found


@rule("breadth-first-scheduler", source="BFScheduler of XLA:CPU")
def breadth_first_scheduler(
    workload: Workload, kernels: Sequence[Kernel], at_once: bool, profile: Profile, batch: int
) -> list[list[Kernel]]:
    """Return the order in which kernels become ready, updates last unless they come as soon as they can."""
    order = breadth_first_order(workload, kernels)
    return [order if at_once else sorted(order, key=in_update)]


def program_order(workload: Workload, kernels: Sequence[Kernel], *, together: bool) -> list[Kernel]:
    """As written, but updates move up to their gradients unless these wait for the end of the backward pass."""
    if together:
        return list(kernels)
    produced: dict[int, float] = {}
    last_read: dict[int, float] = {}
    for place, kernel in enumerate(kernels):
        if not in_update(kernel):
            produced.update(dict.fromkeys(kernel.writes, place))
            last_read.update(dict.fromkeys(kernel.reads, place))
    source = {v.result: v.tensor for v in workload.variables}
    keys: list[float] = []
    for place, kernel in enumerate(kernels):
        key = float(place)
        if in_update(kernel):
            after = [produced.get(read, -1) for read in kernel.reads]
            after += [last_read.get(source[write], -1) for write in kernel.writes if write in source]
            key = max(after, default=-1) + 0.5
            produced.update(dict.fromkeys(kernel.writes, key))
        keys.append(key)
    order = sorted(range(len(kernels)), key=lambda place: (keys[place], place))
    return [kernels[place] for place in order]


def greedy_order(workload: Workload, kernels: Sequence[Kernel], batch: int) -> list[Kernel]:
    """List scheduling by bytes freed less bytes allocated, at this batch; the earlier in the program where equal."""
    return _Greedy(workload, kernels, batch).order()


def breadth_first_order(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """First ready, first run (XLA's BFScheduler): what waits for state and batch alone runs before everything else."""
    arguments = {v.tensor: place for place, v in enumerate(workload.variables)}
    arguments |= {end: len(arguments) + place for place, end in enumerate(workload.inputs)}
    writer = {write: place for place, kernel in enumerate(kernels) for write in kernel.writes}
    waits = [len({writer[read] for read in kernel.reads if read in writer}) for kernel in kernels]
    followers: list[dict[int, None]] = [{} for _ in kernels]
    for place, kernel in enumerate(kernels):
        for read in kernel.reads:
            if read in writer:
                followers[writer[read]][place] = None
    free = [place for place, count in enumerate(waits) if not count]
    queue = deque(sorted(free, key=lambda place: max((arguments.get(r, -1) for r in kernels[place].reads), default=-1)))
    chosen: list[Kernel] = []
    while queue:
        place = queue.popleft()
        chosen.append(kernels[place])
        for follower in sorted(followers[place], key=lambda one: (_turn(workload, kernels[one]), one)):
            waits[follower] -= 1
            if not waits[follower]:
                queue.append(follower)
    return chosen


def _turn(workload: Workload, kernel: Kernel) -> int:
    """Of kernels that wait for the same one, XLA:CPU runs gradients of values first and those of weights last."""
    if kernel.op.phase is not Phase.BACKWARD:
        return 0
    if kernel.op.kind.is_product:
        if all(dim.constant for write in kernel.writes for dim in workload.tensors[write].shape):
            return 1
        return 0 if kernel.op.kind is Kind.DOT and len(workload.tensors[kernel.writes[0]].shape) > _MATRIX else -2
    computes = kernel.op.kind in _COMPUTING and kernel.op.primitive != CONVERT
    return -1 if computes or kernel.op.primitive == PADDED_COPY else 0


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
        """Who waits for whom: readers for writers, and a variable's new value for the readers of the old one."""
        writer = {write: place for place, kernel in enumerate(self.kernels) for write in kernel.writes}
        readers: dict[int, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            for read in kernel.reads:
                self.unread[read] = self.unread.get(read, 0) + 1
                readers.setdefault(read, []).append(place)
                if read in writer:
                    self._wait(place, writer[read])
        for result, old in results.items():
            if result in writer:
                for reader in readers.get(old, ()):
                    if not in_update(self.kernels[reader]):
                        self._wait(writer[result], reader)

    def _wait(self, place: int, on: int) -> None:
        if place != on:
            self.waits[place] += 1
            self.followers[on].append(place)

    def order(self) -> list[Kernel]:
        ready = [place for place, count in enumerate(self.waits) if not count]
        chosen: list[Kernel] = []
        while ready:
            place = max(ready, key=lambda candidate: (self._gain(candidate), -candidate))
            ready.remove(place)
            chosen.append(self.kernels[place])
            for read in self.kernels[place].reads:
                self.unread[read] -= 1
            for follower in self.followers[place]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    ready.append(follower)
        return chosen

    def _gain(self, place: int) -> float:
        kernel = self.kernels[place]
        if kernel.op.kind in _AT_ONCE:
            return math.inf
        freed = sum(
            self.size[read]
            for read in kernel.reads
            if self.unread[read] == 1 and read not in self.free_of_charge and read not in self.lasting
        )
        return freed - sum(self.size[write] for write in kernel.writes if write not in self.free_of_charge)
