"""What a compiler weighs where it keeps a value or computes it again: bytes moved, and arithmetic as bytes that could
be moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cost_models.workload.workload import CONVERT, ITEM_BYTES, Kind, Op, Workload
from cost_models.xla.dataflow import MOST_SAMPLES, Graph, packed_batch
from cost_models.xla.rules import rule

_WIDE = "float32"
_SEQUENCES = 3  # dimensions: samples, steps, features
Costs = tuple[tuple[str, float], ...]
_COMPUTES = frozenset({Kind.DOT, Kind.REDUCE})


def members(mask: int) -> Iterator[int]:
    """The numbers in a bit set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def as_computed(workload: Workload, graph: Graph, sizes: Sequence[float]) -> Sequence[float]:
    """Sizes by tensor before products round them: what these would be handed if another kernel wrote it.

    What convolutions read, too, is rounded where it is written.
    """
    dtype = graph.profile.product_dtype
    if not dtype:
        return sizes
    computed = list(sizes)
    for tensor, readers in graph.readers.items():
        made = workload.tensors[tensor]
        if made.dtype == dtype and all(graph.ops[reader].kind in _COMPUTES for reader in readers):
            source = graph.producer.get(tensor)
            if source is not None and _is_wide(workload, graph.ops[source], sizes[tensor], sizes):
                computed[tensor] *= ITEM_BYTES[_WIDE] / made.item_bytes
    return computed


def _is_wide(workload: Workload, op: Op, size: float, sizes: Sequence[float]) -> bool:
    """Whether this is arithmetic on as much in float32."""
    if op.kind is not Kind.ELEMENTWISE or op.primitive == CONVERT:
        return False
    return any(workload.tensors[read].dtype == _WIDE and sizes[read] >= size for read in op.reads)


@rule("recompute-cost", source="programs compiled for TPU v4, v5e, v5p, v6e, v7x", structure_batch=packed_batch)
def recompute_cost(
    workload: Workload, graph: Graph, batch: int, *, always: Costs = (), unpacked: Costs = ()
) -> Arithmetic:
    """Return how long operations take, as bytes that could be moved meanwhile, by primitive and element.

    unpacked  what is added for sequences of more samples than a word has bits, where no signs are packed
    """
    return Arithmetic(workload, graph, batch, always, unpacked)


class Arithmetic:
    """How long operations take that are not for nothing."""

    def __init__(self, workload: Workload, graph: Graph, batch: int, always: Costs = (), unpacked: Costs = ()) -> None:
        self.workload, self.graph, self.batch = workload, graph, batch
        self.always = dict(always)
        self.each = {**dict(unpacked if batch > MOST_SAMPLES else ()), **self.always}

    def weighs(self, op: Op) -> bool:
        """Whether this operation is one of them."""
        if op.primitive not in self.each:
            return False
        return op.primitive in self.always or len(self.workload.tensors[op.writes[0]].shape) == _SEQUENCES

    def bytes_of(self, operations: int) -> float:
        """Bytes that could be moved while these operations, a bit set of their places, run once."""
        ops = [self.graph.ops[place] for place in members(operations)]
        made = [self.workload.tensors[op.writes[0]].elements.at(self.batch) for op in ops]
        return sum(self.each[op.primitive] * elements for op, elements in zip(ops, made, strict=True))
