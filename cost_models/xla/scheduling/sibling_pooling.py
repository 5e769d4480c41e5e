"""Max-pooling of parallel branches that XLA runs in one kernel on GPUs.

Zeros of one shape are one array (`lowering.py`). Kernels that read it and make the same of as much, and of which none
depends on another, are made one (its multi-output fusion of siblings): as the pooling of two towers of one form, and
the search for the positions of their maxima.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from cost_models.workload.workload import Kind, Tensor, Workload
from cost_models.xla.dataflow import ZEROS_FOR_POOLING
from cost_models.xla.fusion.fusion import Kernel
from cost_models.xla.rules import rule

_Likeness = tuple[int, tuple[Tensor, ...]]


@rule("sibling-pooling", source="MultiOutputFusion of XLA:GPU")
def together(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels, those that are one in the place of the last of them."""
    zeros = {
        write
        for kernel in kernels
        if kernel.op.kind is Kind.BROADCAST and kernel.op.layer == ZEROS_FOR_POOLING
        for write in kernel.writes
    }
    alike: dict[_Likeness, list[int]] = {}
    for place, kernel in enumerate(kernels):
        made = tuple(workload.tensors[write] for write in kernel.writes)
        for read in zeros.intersection(kernel.reads) if kernel.op.kind is Kind.POOL else ():
            alike.setdefault((read, made), []).append(place)
    groups = [places for places in alike.values() if len(places) > 1]
    if not groups:
        return list(kernels)
    above = _above(kernels)
    left: dict[int, Kernel] = dict(enumerate(kernels))
    for places in groups:
        members = [place for place in places if place in left and not any(above[place] >> one & 1 for one in places)]
        if len(members) > 1:
            left[members[-1]] = _one([kernels[place] for place in members])
            for place in members[:-1]:
                del left[place]
    return _in_order([left[place] for place in sorted(left)]) or list(kernels)


def _above(kernels: Sequence[Kernel]) -> list[int]:
    """By kernel, all that it depends on, as bits."""
    maker: dict[int, int] = {}
    found: list[int] = []
    for place, kernel in enumerate(kernels):
        mask = 0
        for read in kernel.reads:
            if read in maker:
                mask |= found[maker[read]] | 1 << maker[read]
        found.append(mask)
        maker.update(dict.fromkeys(kernel.writes, place))
    return found


def _in_order(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels, each behind those that it reads of, else as they are; none where they wait for each other."""
    maker = {write: place for place, kernel in enumerate(kernels) for write in kernel.writes}
    waits = [
        {maker[read] for read in kernel.reads if maker.get(read, place) != place}
        for place, kernel in enumerate(kernels)
    ]
    followers: dict[int, list[int]] = {}
    for place, before in enumerate(waits):
        for one in before:
            followers.setdefault(one, []).append(place)
    ready = [place for place, before in enumerate(waits) if not before]
    order: list[Kernel] = []
    while ready:
        order.append(kernels[place := heapq.heappop(ready)])
        for follower in followers.get(place, ()):
            waits[follower].discard(place)
            if not waits[follower]:
                heapq.heappush(ready, follower)
    return order if len(order) == len(kernels) else []


def _one(kernels: Sequence[Kernel]) -> Kernel:
    reads = dict.fromkeys(read for kernel in kernels for read in kernel.reads)
    writes = tuple(write for kernel in kernels for write in kernel.writes)
    return replace(kernels[-1], reads=tuple(reads), writes=writes, fused=sum(kernel.fused for kernel in kernels))
