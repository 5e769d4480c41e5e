"""Kernels that hold whole rows, and kernels whose result takes the place of what they read.

XLA makes one Triton kernel of a softmax or a normalisation over the last dimensions, sums included, as long as a row
fits a block. The results of such kernels have places of their own; those of other elementwise kernels take the place
of an operand that nobody reads afterwards (its FusionCanShareBufferHint).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from cost_models.workload.workload import Kind, Op, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.rules import rule

ONE_BY_ONE = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE})
"""What works element for element."""
_IN_TUPLES = frozenset({Kind.CONV, Kind.LOOP, Kind.BRANCH})
_LONGEST = 2**14  # elements of a row that a Triton kernel holds at once (16,000 were, 20,000 were not; jax 0.10.2)
_SHORT_CHAIN = 4  # operations between a sum over rows and the sum of these sums


@rule("elementwise-in-place", source="FusionCanShareBufferHint of XLA:GPU, HeapSimulator")
def elementwise_in_place(rows: Rows, last: int, writes: Sequence[int], exists: Sequence[int]) -> tuple[int, ...]:
    """Return the operands whose buffers the result of an elementwise kernel may reuse."""
    return rows.in_place(last, writes, exists)


@rule("normalised-rows", source="SoftmaxRewriterTriton and TreeReductionRewriter of XLA:GPU")
def normalised_rows(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield rows that are normalised and then summed all together."""
    return Rows(workload, graph, batch).normalised()


class Rows:
    """What is known of rows in one body of operations, at a local batch."""

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.workload, self.graph, self.batch = workload, graph, batch
        self.reads = [tuple(dict.fromkeys(map(graph.of, op.reads))) for op in graph.ops]

    def in_place(self, last: int, writes: Sequence[int], exists: Sequence[int]) -> tuple[int, ...]:
        """What the kernel that ends with this operation reads element for element and nowhere else.

        Of that only what is as large as its one result. `exists` flags the tensors that are in memory.
        """
        if len(writes) != 1 or self.graph.ops[last].kind not in ONE_BY_ONE:
            return ()
        straight: dict[int, bool] = {}
        pending, seen = [(last, True)], set[tuple[int, bool]]()
        while pending:
            at, alike = pending.pop()
            seen.add((at, alike))
            alike = alike and self.graph.ops[at].kind in ONE_BY_ONE
            for read in self.reads[at]:
                if exists[read]:
                    straight[read] = straight.get(read, True) and alike
                elif (source := (self.graph.producer[read], alike)) not in seen:
                    pending.append(source)
        if any(not alike and read in self.statistics for read, alike in straight.items()):
            return ()
        size = self.workload.sizes[writes[0]]
        alone = (read for read, alike in straight.items() if alike and not self._is_in_tuple(read))
        return tuple(read for read in alone if self.workload.sizes[read] == size)

    def _is_in_tuple(self, tensor: int) -> bool:
        """Whether what makes this hands over several results: who reads one of them does not read its maker's result.

        XLA shares a buffer with the maker of an operand alone (HeapSimulator). A library's convolution hands over its
        workspace, too.
        """
        source = self.graph.producer.get(tensor)
        return source is not None and self.graph.ops[source].kind in _IN_TUPLES

    @cached_property
    def statistics(self) -> frozenset[int]:
        """Sums and the like over the last dimensions, and what is computed of these alone: one value a row."""
        found: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            if op.kind is Kind.REDUCE and op.reads:
                source, made = (self.workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
                row = math.prod(dim.at(self.batch) for dim in source[len(made) :])
                if 0 < len(made) < len(source) and source[: len(made)] == made and 1 < row <= _LONGEST:
                    found.update(op.writes)
            elif (op.kind in ONE_BY_ONE or self._only_reshapes(op)) and self._is_made_of(found, index):
                found.update(op.writes)
        return frozenset(found)

    def normalised(self) -> Iterator[int]:
        """Rows that are normalised and then summed all together: XLA splits that sum otherwise than into rows.

        Its tree reduction makes as many parts as the power of two next below the root of the elements.
        """
        for index, op in enumerate(self.graph.ops):
            if op.kind is Kind.REDUCE and op.writes[0] in self.statistics and self._ends_in_one_sum(op.writes[0]):
                rows = self._elements(op.writes[0])
                if rows != 2 ** math.floor(math.log2(max(1.0, self._elements(op.reads[0]))) / 2):
                    yield from self._nearest_normalised(index)

    def _is_made_of(self, statistics: set[int], index: int) -> bool:
        reads = self.reads[index]
        return not statistics.isdisjoint(reads) and all(r in statistics or self._is_spread(r) for r in reads)

    def _elements(self, tensor: int) -> float:
        return self.workload.tensors[tensor].elements.at(self.batch)

    def _only_reshapes(self, op: Op) -> bool:
        """Whether a broadcast adds dimensions of one element alone."""
        ends = [self.workload.tensors[end].elements for end in (*op.reads, *op.writes)]
        return op.kind is Kind.BROADCAST and len(ends) == 2 and ends[0] == ends[1]

    def _is_spread(self, tensor: int) -> bool:
        """Whether this is the same number everywhere."""
        source = self.graph.producer.get(tensor)
        spread = source is not None and self.graph.ops[source].kind is Kind.BROADCAST
        return spread or not self.workload.tensors[tensor].shape

    def _ends_in_one_sum(self, tensor: int) -> bool:
        """Whether one number is summed of this, with nothing but arithmetic element for element in between."""
        for _ in range(_SHORT_CHAIN):
            readers = self.graph.readers.get(tensor, ())
            if len(readers) != 1:
                return False
            op = self.graph.ops[readers[0]]
            if op.kind is Kind.REDUCE:
                return not self.workload.tensors[op.writes[0]].shape
            if op.kind is not Kind.ELEMENTWISE:
                return False
            tensor = op.writes[0]
        return False

    def _nearest_normalised(self, reduction: int) -> Iterator[int]:
        pending = [reduction]
        while pending:
            for read in self.reads[pending.pop()]:
                source = self.graph.producer.get(read)
                if source is None or self.graph.ops[source].kind not in ONE_BY_ONE:
                    continue
                if any(self._is_of_rows(other) for other in self.reads[source]):
                    yield read
                else:
                    pending.append(source)

    def _is_of_rows(self, tensor: int) -> bool:
        source = self.graph.producer.get(tensor)
        spread = source is not None and self.graph.ops[source].kind is Kind.BROADCAST
        return tensor in self.statistics or (
            spread and source is not None and not self.statistics.isdisjoint(self.reads[source])
        )
