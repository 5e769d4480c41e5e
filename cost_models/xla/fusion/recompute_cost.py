"""Computes the cost of recomputing a value in each reader, in equivalent bytes of memory traffic."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.workload.workload import CONVERT, ITEM_BYTES, Kind, Op, Workload
from cost_models.xla.dataflow import WIDE, Graph, members
from cost_models.xla.rules import rule

_ROUNDING_READERS = frozenset({Kind.DOT, Kind.REDUCE})
Costs = tuple[tuple[str, float], ...]


def as_computed(workload: Workload, graph: Graph, sizes: Sequence[float]) -> Sequence[float]:
    """Return sizes by tensor before products round them: a kernel that writes an operand writes as many bytes.

    Operands of convolutions are rounded where they are written.
    """
    dtype = graph.profile.product_dtype
    if not dtype:
        return sizes
    computed = list(sizes)
    for tensor, readers in graph.readers.items():
        made = workload.tensors[tensor]
        if made.dtype == dtype and all(graph.ops[reader].kind in _ROUNDING_READERS for reader in readers):
            source = graph.producer.get(tensor)
            if source is not None and _is_wide(workload, graph.ops[source], sizes[tensor], sizes):
                computed[tensor] *= ITEM_BYTES[WIDE] / made.item_bytes
    return computed


def _is_wide(workload: Workload, op: Op, size: float, sizes: Sequence[float]) -> bool:
    """Return whether an operation is arithmetic on as many bytes in float32."""
    if op.kind is not Kind.ELEMENTWISE or op.primitive == CONVERT:
        return False
    return any(workload.tensors[read].dtype == WIDE and sizes[read] >= size for read in op.reads)


@rule("recompute-cost", source="programs compiled for TPU v4, v5p, v6e, v7x")
def recompute_cost(workload: Workload, graph: Graph, batch: int, *, costs: Costs) -> Arithmetic:
    """Return the cost of arithmetic by primitive, in bytes an element."""
    return Arithmetic(workload, graph, batch, costs)


class Arithmetic:
    """The time that operations take, as bytes that could be moved meanwhile."""

    def __init__(self, workload: Workload, graph: Graph, batch: int, costs: Costs = ()) -> None:
        self.workload, self.graph, self.batch = workload, graph, batch
        self.costs = dict(costs)

    def weighs(self, op: Op) -> bool:
        """Return whether an operation has a cost."""
        return op.primitive in self.costs

    def bytes_of(self, operations: int) -> float:
        """Return the bytes that could be moved while these operations, a bit set of their indices, run once."""
        ops = [self.graph.ops[index] for index in members(operations)]
        made = [self.workload.tensors[op.writes[0]].elements.at(self.batch) for op in ops]
        return sum(self.costs[op.primitive] * elements for op, elements in zip(ops, made, strict=True))
