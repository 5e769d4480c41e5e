"""What a compiler weighs where it keeps a value or computes it again: bytes moved, and arithmetic as bytes that could
be moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cost_models.workload.workload import CONVERT, ITEM_BYTES, Kind, Op, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.passes.relu_mask_packing import MOST_SAMPLES

_WIDE = "float32"
_SEQUENCES = 3  # dimensions: samples, steps, features
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
    dtype = graph.target.product_dtype
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


class Arithmetic:
    """How long operations take that are not for nothing."""

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.workload, self.graph, self.batch = workload, graph, batch
        self.always = dict(graph.target.arithmetic)
        self.each = {**dict(graph.target.arithmetic_unpacked if batch > MOST_SAMPLES else ()), **self.always}

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
