"""What XLA:TPU makes of a product's result before that is written: an elementwise operation in the product's kernel.

A chain of such operations ends where something else reads it. On some chips what only other products read of it, a bias
added and no more, is left to these: the product's own result is what is in memory then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cost_models.workload.workload import CONVERT, Kind, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.rules import rule

_MAX_VISITS = 64  # operations looked at downstream of one product before giving up: fused groups are smaller


@rule("gemm-epilogue", source="programs compiled for TPU v4, v5e and v6e: output fusion of dots and convolutions")
def gemm_epilogue(
    workload: Workload,
    graph: Graph,
    sizes: Sequence[float],
    must: Collection[int],
    *,
    leaves_to_products: bool = False,
) -> Epilogues:
    """Return the products whose kernels compute elementwise operations on their results.

    leaves_to_products  results that only products read again are written, and these add the bias and round
    """
    return Epilogues(workload, graph, sizes, must, leaves_to_products)


class Epilogues:
    """Products of one body of operations whose kernels go on, by what exists whatever it costs.

    products  places of these
    between   by tensor inside of such a kernel that several operations read, the product's result
    """

    def __init__(
        self,
        workload: Workload,
        graph: Graph,
        sizes: Sequence[float],
        must: Collection[int],
        leaves_to_products: bool = False,
    ) -> None:
        self.leaves_to_products = leaves_to_products
        self.workload, self.graph, self.size, self.must = workload, graph, sizes, frozenset(must)
        self.reads = [tuple(map(graph.of, op.reads)) for op in graph.ops]
        self.between: dict[int, int] = {}
        self.products = self._products() if "gemm-epilogue" in graph.profile else frozenset()

    def _products(self) -> frozenset[int]:
        """Products whose result goes on into one elementwise operation: they end where that chain ends."""
        found = (
            index
            for index, op in enumerate(self.graph.ops)
            if op.kind.is_product and op.writes[0] not in self.must
            if not self._is_left_to_products(op.writes[0])
            if self.goes_on(op.writes[0]) or self._goes_on_together(op.writes[0])
        )
        return frozenset(found)

    def goes_on(self, tensor: int) -> bool:
        """Whether exactly one elementwise operation reads this, element for element, and makes no more bytes of it.

        More bytes do where that is a step to a sum of gradients: of a table that is the head, too, the product waits
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
        """Whether this converts what is then added to another gradient."""
        op = self.graph.ops[index]
        readers = self.graph.readers.get(op.writes[0], ())
        return op.primitive == CONVERT and [self.graph.ops[reader].primitive for reader in readers] == ["add_any"]

    def _is_left_to_products(self, tensor: int) -> bool:
        """Whether products read what is made of this and of little else, and round it: they compute that themselves."""
        if not self.leaves_to_products:
            return False
        own = tensor
        while self.goes_on(tensor) and self._is_made_of_little_else(tensor):
            tensor = self.graph.ops[self.graph.readers[tensor][0]].writes[0]
        readers = self.graph.readers.get(tensor, ())
        by_products = bool(readers) and all(self.graph.ops[reader].kind is Kind.DOT for reader in readers)
        return by_products and self.size[tensor] < self.size[own]

    def _is_made_of_little_else(self, tensor: int) -> bool:
        """Whether the one reader of this reads broadcasts beside it."""
        elements = self.workload.tensors[tensor].elements
        return all(
            other == tensor or self._is_broadcast(other) or self.workload.tensors[other].elements != elements
            for other in self.reads[self.graph.readers[tensor][0]]
        )

    def _is_broadcast(self, tensor: int) -> bool:
        source = self.graph.producer.get(tensor)
        return source is not None and self.graph.ops[source].kind is Kind.BROADCAST

    def _goes_on_together(self, tensor: int) -> bool:
        """Whether several elementwise operations read this, and all that follows from them ends in one of them.

        What lies between is noted in `between`, by this tensor.
        """
        source = self.graph.producer[tensor]
        if len(self.graph.readers.get(tensor, ())) < 2:
            return False
        inside = {tensor}
        for index in range(source + 1, len(self.graph.ops)):
            if inside.isdisjoint(self.reads[index]) or self.graph.is_view(index):
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
        """Whether an operation is elementwise, of the same phase, and makes as many elements as the product does."""
        op, product = self.graph.ops[index], self.graph.ops[source]
        elements = self.workload.tensors[product.writes[0]].elements
        alike = all(self.workload.tensors[write].elements == elements for write in op.writes)
        return op.kind is Kind.ELEMENTWISE and op.phase is product.phase and alike

    def _is_closed(self, inside: set[int], last: int) -> bool:
        """Whether only the results of the last operation are read after it."""
        between = inside.difference(self.graph.ops[last].writes)
        return all(reader <= last for one in between for reader in self.graph.readers.get(one, ()))
