"""What XLA computes on GPUs before reductions over columns that have too few blocks to fill the device (`columns.py`).

Of the chain that ends in such a reduction that is the nearest value which something else computes with, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cost_models.workload.workload import CONVERT, Kind, Op, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.column_reduction import (
    CACHED_COLUMNS,
    COLUMNS,
    GROUPED_COLUMNS,
    column_batch,
    leaves_idle,
    lies_in_caches,
)
from cost_models.xla.rules import rule


@rule(COLUMNS, source="programs compiled for A100 and H100; TreeReductionRewriter", structure_batch=column_batch)
def column_reduction(
    workload: Workload,
    graph: Graph,
    batch: int,
    fusible: Sequence[bool],
    *,
    narrow_blocks: int,
    wide_blocks: int,
    chained_blocks: int,
) -> frozenset[int]:
    """Return the tensors that are kept before reductions over columns, as far as nothing else decides.

    Reductions that run on fewer blocks than these leave much of the device idle: of narrow values, of values in float32
    that one operation makes, and of those that more operations make.
    """
    return BeforeColumns(workload, graph, batch, fusible).values()


@rule(CACHED_COLUMNS, source="programs compiled for A100", structure_batch=column_batch)
def cached_column_reduction(workload: Workload, op: Op, batch: int, *, blocks: int, cache_bytes: int) -> None:
    """Chains count as such up to so many blocks though a part of them is written, if long columns fit the caches."""


@rule(GROUPED_COLUMNS, source="programs compiled for A100", structure_batch=column_batch)
def grouped_column_reduction(workload: Workload, op: Op, batch: int, *, blocks: int) -> None:
    """Reductions of narrow images whose channels are summed in groups leave much of the device idle below this."""


class BeforeColumns:
    """Of one body of operations, at a local batch. `fusible` flags the operations that need not write their results."""

    def __init__(self, workload: Workload, graph: Graph, batch: int, fusible: Sequence[bool]) -> None:
        self.workload, self.graph, self.batch, self.fusible = workload, graph, batch, fusible
        self.size = [size.at(batch) for size in workload.sizes]
        self.reads = [tuple(dict.fromkeys(map(graph.of, op.reads))) for op in graph.ops]

    def values(self) -> frozenset[int]:
        """The tensors that are kept for that reason, as far as nothing else decides."""
        found: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            where = self.workload, op, self.graph.profile, self.batch
            if leaves_idle(*where):
                found.update(self._nearest_shared(index))
            elif leaves_idle(*where, chained=True):
                there = set() if lies_in_caches(*where) else found
                near = self._nearest_shared(index)
                found.update(one for one in near if self._follows_bias(one) or self._is_chained(one, there))
        return frozenset(found)

    def _is_chained(self, tensor: int, there: set[int]) -> bool:
        """Whether more than one operation on as many elements makes this of what is in memory."""
        count, pending = 0, [tensor]
        while pending and count < 2:
            source = self.graph.producer.get(read := pending.pop())
            if source is not None and self.fusible[source] and (read == tensor or read not in there):
                op = self.graph.ops[source]
                count += op.kind is Kind.ELEMENTWISE and op.primitive != CONVERT and not self._is_bias(op)
                pending += [one for one in self.reads[source] if self.size[one] >= self.size[tensor]]
        return count > 1

    def _follows_bias(self, tensor: int) -> bool:
        """Whether this is an activation of a product with its bias, which every reader would have to read as well."""
        op = self.graph.ops[self.graph.producer[tensor]]
        before = (self.graph.producer.get(self.graph.of(read)) for read in op.reads)
        return len(op.reads) == 1 and any(one is not None and self._is_bias(self.graph.ops[one]) for one in before)

    def _is_bias(self, op: Op) -> bool:
        """Whether this adds to what a product makes, which computes it along."""
        made_by = (self.graph.producer.get(self.graph.of(read)) for read in op.reads)
        of_product = any(one is not None and self.graph.ops[one].kind is Kind.DOT for one in made_by)
        return op.primitive == "add" and of_product

    def _nearest_shared(self, reduction: int) -> Iterator[int]:
        pending = [reduction]
        while pending:
            at = pending.pop()
            for read in self.reads[at]:
                source = self.graph.producer.get(read)
                if source is None or not self.fusible[source] or self.size[read] < self.size[self.reads[reduction][0]]:
                    continue
                if self._is_shared(read, at) and self.graph.ops[source].primitive != CONVERT:
                    yield read
                else:
                    pending.append(source)

    def _is_shared(self, tensor: int, reader: int) -> bool:
        """Whether something beside this reader computes with it; a conversion that is written is computed along."""
        others = (self.graph.ops[other] for other in self.graph.readers[tensor] if other != reader)
        return any(other.primitive != CONVERT or self._is_read_in_kernels(other.writes[0]) for other in others)

    def _is_read_in_kernels(self, tensor: int) -> bool:
        """Whether several read this, and none of them from memory."""
        readers = self.graph.readers.get(tensor, ())
        return len(readers) > 1 and all(self.fusible[reader] for reader in readers)
