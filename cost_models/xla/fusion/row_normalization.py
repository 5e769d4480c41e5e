"""Models XLA:GPU kernels that compute a whole softmax or LayerNorm, and elementwise kernels that reuse a buffer.

XLA:GPU makes one Triton kernel of a softmax or a normalisation over the last dimensions, sums included, as long as a
row fits a block. The results of these kernels have buffers of their own. The result of any other elementwise kernel
reuses the buffer of an operand whose last reader the kernel is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from cost_models.workload.workload import Kind, Op, Workload
from cost_models.xla.dataflow import ONE_BY_ONE, Graph
from cost_models.xla.rules import rule

_SEVERAL_RESULTS = frozenset({Kind.CONV, Kind.LOOP, Kind.BRANCH})
_LONGEST_ROW = 2**14  # elements that a Triton kernel holds at once (rows of 16,000 were, of 20,000 were not)
_MOST_BETWEEN = 4  # operations between the sums over rows and the sum of these sums


@rule("elementwise-in-place", source="FusionCanShareBufferHint of XLA:GPU, HeapSimulator")
def elementwise_in_place(workload: Workload, graph: Graph, batch: int) -> Rows:
    """Return the rows of a body, which know whose buffers the results of elementwise kernels may reuse."""
    return Rows(workload, graph, batch)


@rule("normalised-rows", source="SoftmaxRewriterTriton and TreeReductionRewriter of XLA:GPU")
def normalised_rows(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield rows that are normalised and then summed all together."""
    return Rows(workload, graph, batch).normalised()


class Rows:
    """The rows in one body of operations, at a local batch."""

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.workload, self.graph, self.batch = workload, graph, batch

    def operands(self, last: int, writes: Sequence[int], exists: Sequence[int]) -> tuple[int, ...]:
        """Return the operands whose buffers the result of a kernel may reuse, by the kernel's last operation.

        These are read at the same index only, and are as large as the one result. `exists` flags the tensors that are
        in memory.
        """
        if len(writes) != 1 or self.graph.ops[last].kind not in ONE_BY_ONE:
            return ()
        aligned: dict[int, bool] = {}
        pending, seen = [(last, True)], set[tuple[int, bool]]()
        while pending:
            at, alike = pending.pop()
            seen.add((at, alike))
            alike = alike and self.graph.ops[at].kind in ONE_BY_ONE
            for read in self.graph.reads[at]:
                if exists[read]:
                    aligned[read] = aligned.get(read, True) and alike
                elif (source := (self.graph.producer[read], alike)) not in seen:
                    pending.append(source)
        if any(not alike and read in self.statistics for read, alike in aligned.items()):
            return ()
        size = self.workload.sizes[writes[0]]
        alone = (read for read, alike in aligned.items() if alike and not self._is_in_tuple(read))
        return tuple(read for read in alone if self.workload.sizes[read] == size)

    def _is_in_tuple(self, tensor: int) -> bool:
        """Return whether a tensor is one of several results: XLA shares a buffer with the sole result of an operand.

        A library's convolution returns its workspace, too.
        """
        maker = self.graph.maker(tensor)
        return maker is not None and maker.kind in _SEVERAL_RESULTS

    @cached_property
    def statistics(self) -> frozenset[int]:
        """Reductions over the last dimensions, and results that are computed of these alone: one value a row."""
        found: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            if op.kind is Kind.REDUCE and op.reads:
                source, made = (self.workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
                row = math.prod(dim.at(self.batch) for dim in source[len(made) :])
                if 0 < len(made) < len(source) and source[: len(made)] == made and 1 < row <= _LONGEST_ROW:
                    found.update(op.writes)
            elif (op.kind in ONE_BY_ONE or self._only_reshapes(op)) and self._is_made_of(found, index):
                found.update(op.writes)
        return frozenset(found)

    def normalised(self) -> Iterator[int]:
        """Yield rows that are normalised and then summed all together, if XLA splits that sum otherwise than into rows.

        Its tree reduction makes as many parts as the power of two next below the root of the elements.
        """
        for index, op in enumerate(self.graph.ops):
            if op.kind is Kind.REDUCE and op.writes[0] in self.statistics and self._ends_in_one_sum(op.writes[0]):
                rows = self._elements(op.writes[0])
                if rows != 2 ** math.floor(math.log2(max(1.0, self._elements(op.reads[0]))) / 2):
                    yield from self._nearest_normalised(index)

    def _is_made_of(self, statistics: set[int], index: int) -> bool:
        reads = self.graph.reads[index]
        return not statistics.isdisjoint(reads) and all(r in statistics or self._is_spread(r) for r in reads)

    def _elements(self, tensor: int) -> float:
        return self.workload.tensors[tensor].elements.at(self.batch)

    def _only_reshapes(self, op: Op) -> bool:
        """Return whether an operation is a broadcast that adds dimensions of one element alone."""
        ends = [self.workload.tensors[end].elements for end in (*op.reads, *op.writes)]
        return op.kind is Kind.BROADCAST and len(ends) == 2 and ends[0] == ends[1]

    def _is_spread(self, tensor: int) -> bool:
        """Return whether a tensor is the same number everywhere."""
        return self.graph.is_broadcast(tensor) or not self.workload.tensors[tensor].shape

    def _ends_in_one_sum(self, tensor: int) -> bool:
        """Return whether one number is summed of a tensor, after elementwise arithmetic at most."""
        for _ in range(_MOST_BETWEEN):
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
            for read in self.graph.reads[pending.pop()]:
                source = self.graph.producer.get(read)
                if source is None or self.graph.ops[source].kind not in ONE_BY_ONE:
                    continue
                if any(self._is_of_rows(other) for other in self.graph.reads[source]):
                    yield read
                else:
                    pending.append(source)

    def _is_of_rows(self, tensor: int) -> bool:
        """Return whether a tensor is one value a row, or the broadcast of such values."""
        if tensor in self.statistics:
            return True
        maker = self.graph.producer.get(tensor)
        spread = maker is not None and self.graph.is_broadcast(tensor)
        return spread and not self.statistics.isdisjoint(self.graph.reads[maker or 0])
