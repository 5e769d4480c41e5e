"""Lists the all-reduces that data parallelism needs in a micro-step, with the bytes of each.

Each device runs the whole step on its share of the batch. Every contraction or sum over the batch gives a partial
result on each device, and an all-reduce adds them: gradients, and the statistics of a BatchNorm over the global batch.
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

    gradient_bytes     sums over the batch that the optimizer reads; XLA combines them into few collectives
    statistics_bytes   sums over the batch that the step itself waits for (BatchNorm, losses): (bytes, count)
    """

    gradient_bytes: int
    statistics_bytes: tuple[tuple[int, int], ...]


def split_axis(shape: Sequence[int], devices: int) -> int | None:
    """Return the dimension along which a variable is split over `devices`.

    It is the longest divisible dimension, the first of equally long ones. None where no dimension is divisible, and for
    one device: the variable is replicated.
    """
    if devices == 1:
        return None
    dividing = [axis for axis, length in enumerate(shape) if length and length % devices == 0]
    return max(dividing, key=lambda axis: (shape[axis], -axis), default=None)


@lru_cache(maxsize=64)
def collectives(workload: Workload) -> Collectives:
    """Return the all-reduces of data parallelism. Accumulation saves none, because Keras reduces every micro-step."""
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
    """Return the gradients that an update reads, through views, casts and sums."""
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
