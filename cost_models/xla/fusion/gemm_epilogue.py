"""Fuses elementwise operations on the result of a product into the product's kernel (epilogues), as XLA:TPU does.

A chain of such operations ends where another operation reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cost_models.workload.workload import CONVERT, Kind, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.rules import rule

_MAX_VISITS = 64  # operations visited downstream of one product before giving up: fused groups are smaller


@rule("gemm-epilogue", source="programs compiled for TPU v4, v5e and v6e: output fusion of dots and convolutions")
def gemm_epilogue(workload: Workload, graph: Graph, sizes: Sequence[float], must: Collection[int]) -> Epilogues:
    """Return the products whose kernels go on; `must` are the tensors that are written whatever it costs."""
    found = Epilogues(workload, graph, sizes, must)
    found.find()
    return found


class Epilogues:
    """Products of one body of operations whose kernels go on.

    products  indices of these products
    between   by tensor inside such a kernel that several operations read, the product's result
    """

    def __init__(self, workload: Workload, graph: Graph, sizes: Sequence[float], must: Collection[int]) -> None:
        self.workload, self.graph, self.size, self.must = workload, graph, sizes, frozenset(must)
        self.between: dict[int, int] = {}
        self.products: frozenset[int] = frozenset()

    def find(self) -> None:
        """Find the products whose result goes on into elementwise operations: they end where that chain ends."""
        found = (
            index
            for index, op in enumerate(self.graph.ops)
            if op.kind.is_product and op.writes[0] not in self.must
            if self.goes_on(op.writes[0]) or self._goes_on_together(op.writes[0])
        )
        self.products = frozenset(found)

    def goes_on(self, tensor: int) -> bool:
        """Return whether exactly one elementwise operation reads a tensor and makes no more bytes of it.

        More bytes are allowed in a step to a sum of gradients: for a table that is the head, too, the product waits
        for what is scattered.
        """
        readers = self.graph.readers.get(tensor, ())
        if len(readers) != 1 or self.graph.ops[readers[0]].kind is not Kind.ELEMENTWISE:
            return False
        elements = self.workload.tensors[tensor].elements
        made = self.graph.ops[readers[0]].writes
        if any(self.workload.tensors[write].elements != elements for write in made):
            return False
        return all(self.size[write] <= self.size[tensor] for write in made) or self._is_summed(readers[0])

    def _is_summed(self, index: int) -> bool:
        """Return whether an operation converts a gradient that is then added to another gradient."""
        op = self.graph.ops[index]
        readers = self.graph.readers.get(op.writes[0], ())
        return op.primitive == CONVERT and [self.graph.ops[reader].primitive for reader in readers] == ["add_any"]

    def _goes_on_together(self, tensor: int) -> bool:
        """Return whether several elementwise operations read a tensor and all that follows ends in one of them.

        The tensors in between are added to `between`.
        """
        source = self.graph.producer[tensor]
        if len(self.graph.readers.get(tensor, ())) < 2:
            return False
        inside = {tensor}
        for index in range(source + 1, len(self.graph.ops)):
            if inside.isdisjoint(self.graph.reads[index]) or self.graph.is_view(index):
                continue
            made = self.graph.ops[index].writes
            if len(inside) > _MAX_VISITS or not self._is_alike(index, source):
                return False
            inside.update(made)
            if self._is_closed(inside, index):
                smaller = all(self.size[write] <= self.size[tensor] for write in made)
                self.between.update(dict.fromkeys(inside.difference(made), tensor) if smaller else {})
                return smaller
            if not self.must.isdisjoint(made):
                return False
        return False

    def _is_alike(self, index: int, source: int) -> bool:
        """Return whether an operation is elementwise, of the product's phase, and makes as many elements."""
        op, product = self.graph.ops[index], self.graph.ops[source]
        elements = self.workload.tensors[product.writes[0]].elements
        alike = all(self.workload.tensors[write].elements == elements for write in op.writes)
        return op.kind is Kind.ELEMENTWISE and op.phase is product.phase and alike

    def _is_closed(self, inside: set[int], last: int) -> bool:
        """Return whether only the results of the last operation are read after it."""
        between = inside.difference(self.graph.ops[last].writes)
        return all(reader <= last for one in between for reader in self.graph.readers.get(one, ()))
