"""What data parallelism must communicate in a micro-step.

Each device runs the whole step on its share of the batch. Whatever contracts or sums over the batch gives each device
a part of the answer: these parts meet in all-reduces. Gradients are such sums, and so are the statistics of a
BatchNorm over the global batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cost_models.workload.workload import Kind, Op, Phase, Workload, walk

_SUMS = frozenset({Kind.DOT, Kind.CONV, Kind.REDUCE, Kind.SCATTER})
_PASSES_ON = frozenset({Kind.VIEW, Kind.MOVE, Kind.ELEMENTWISE, Kind.REDUCE})


@dataclass(frozen=True)
class Collectives:
    """All-reduces of one micro-step, in bytes of the whole array.

    gradients   sums over the batch that leave for the optimizer; XLA combines them into few
    statistics  sums over the batch that the step itself waits for, one by one (BatchNorm, losses): (bytes, how many)
    """

    gradient_bytes: int
    statistics_bytes: tuple[tuple[int, int], ...]


def split_axis(shape: Sequence[int], devices: int) -> int | None:
    """The dimension along which a variable is split over `devices`: the longest that divides, the first of equals.

    None where none divides, and for one device: such a variable is whole everywhere.
    """
    if devices == 1:
        return None
    dividing = [axis for axis, length in enumerate(shape) if length and length % devices == 0]
    return max(dividing, key=lambda axis: (shape[axis], -axis), default=None)


@lru_cache(maxsize=64)
def collectives(workload: Workload) -> Collectives:
    """The all-reduces that splitting the batch brings. Accumulation spares none: Keras reduces every micro-step."""
    update_reads = {read for op in workload.ops if op.phase is Phase.UPDATE for read in _sources(workload, op)}
    gradients, statistics = 0.0, Counter[int]()
    for op in walk(workload.ops):
        if op.phase is Phase.UPDATE or not _sums_over_batch(workload, op):
            continue
        size = sum(workload.tensors[write].bytes.fixed for write in op.writes)
        if op.phase is Phase.BACKWARD and update_reads.intersection(op.writes):
            gradients += size
        else:
            statistics[round(size)] += 1
    return Collectives(round(gradients), tuple(sorted(statistics.items())))


def _sums_over_batch(workload: Workload, op: Op) -> bool:
    grows = any(not workload.tensors[read].elements.constant for read in op.reads)
    return op.kind in _SUMS and grows and all(workload.tensors[write].elements.constant for write in op.writes)


@lru_cache(maxsize=8)
def _producers(workload: Workload) -> dict[int, Op]:
    return {write: op for op in workload.ops for write in op.writes}


def _sources(workload: Workload, op: Op) -> set[int]:
    """What an update reads, and what that is a view, a cast or a sum of: still the gradient."""
    found: set[int] = set()
    pending = list(op.reads)
    producers = _producers(workload)
    while pending:
        read = pending.pop()
        maker = producers.get(read)
        if read in found or maker is None or maker.phase is not Phase.BACKWARD:
            continue
        found.add(read)
        if maker.kind in _PASSES_ON and not _sums_over_batch(workload, maker):
            pending.extend(maker.reads)
    return found
