"""Groups reductions and the operations around them into library calls, as XLA:CPU does for YNNPACK.

From the last reduction to the first, each call takes the makers of its operands as long as nothing else reads their
results, then the only reader of its result, and the makers of that reader's operands. Products and convolutions join in
the same way. Sums over small tensors are no calls (LibraryRewriter).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, Kind, Op, Workload, walk
from cost_models.xla.dataflow import Graph
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_DTYPES = frozenset({"float32", "float64", "bfloat16"})
_UNARY = frozenset(
    {"abs", "ceil", CONVERT, "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "round", "rsqrt"}
    | {"sign", "sin", "sqrt", "square", "tan", "tanh"}
)
_BINARY = frozenset({"add", "add_any", "div", "max", "min", "mul", "pow", "sub"})
_MOVES = frozenset({"broadcast_in_dim", "transpose", "pad"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
SHORT_REDUCTION = 32
"""Elements that XLA:CPU reduces at once; longer reductions are split in two (TreeReductionRewriter)."""


@dataclass
class _Call:
    """The operations of one call; only the result of `root` is written."""

    members: set[int]
    root: int
    visited: set[int] = field(default_factory=set)


def library_batch(workload: Workload, profile: Profile, batch: int) -> int:
    """Return the batch nearest to that of the trace at which the same tensors are large enough as at `batch`."""
    return _same_calls(workload, profile.setting("ynnpack", "least_elements"), batch)


@rule("ynnpack", source="LibraryRewriter and IsInstructionPreferredByYnn of XLA:CPU", structure_batch=library_batch)
def ynnpack(
    workload: Workload, graph: Graph, batch: int, *, least_elements: int
) -> dict[int, tuple[int, frozenset[int]]]:
    """Return (the operation that ends the call, all of its operations) by each of its operations.

    least_elements  of the largest operand or result, else the library is not called
    """
    return _Library(workload, graph, batch, least_elements).calls()


class _Library:
    def __init__(self, workload: Workload, graph: Graph, batch: int, least_elements: int) -> None:
        self.workload, self.graph, self.batch, self.least_elements = workload, graph, batch, least_elements
        self.taken: set[int] = set()

    def calls(self) -> dict[int, tuple[int, frozenset[int]]]:
        found: dict[int, tuple[int, frozenset[int]]] = {}
        for index in range(len(self.graph.ops) - 1, -1, -1):
            if index not in self.taken and self._starts(index):
                call = self._grown(index)
                found.update(dict.fromkeys(call.members, (call.root, frozenset(call.members))))
        return found

    def _grown(self, start: int) -> _Call:
        call = _Call({start}, start)
        self.taken.add(start)
        while self._grow_up(call) or self._grow_down(call):
            pass
        return call

    def _grow_up(self, call: _Call) -> bool:
        """Add the makers of the call's operands, where nothing else reads these."""
        grown = False
        pending = list(call.members)
        while pending:
            for read in self.graph.ops[pending.pop()].reads:
                source = self.graph.producer.get(tensor := self.graph.of(read))
                if source is None or source in self.taken or tensor in self.graph.outputs:
                    continue
                if call.members.issuperset(self.graph.readers.get(tensor, ())) and self._takes(source):
                    self._take(call, source)
                    pending.append(source)
                    grown = True
        return grown

    def _grow_down(self, call: _Call) -> bool:
        """Add the reader of the call's result, where there is only one."""
        grown = False
        while (user := self._only_reader(call.root)) is not None and user not in self.taken and self._takes(user):
            self._take(call, user)
            call.root = user
            grown = True
        return grown

    def _only_reader(self, index: int) -> int | None:
        made = self.graph.ops[index].writes
        if len(made) != 1 or made[0] in self.graph.outputs:
            return None
        readers = self.graph.readers.get(made[0], ())
        return readers[0] if len(readers) == 1 else None

    def _take(self, call: _Call, index: int) -> None:
        call.members.add(index)
        self.taken.add(index)

    def _starts(self, index: int) -> bool:
        op = self.graph.ops[index]
        return op.primitive in _REDUCTIONS and self._is_plain(op) and self._is_large(op)

    def _takes(self, index: int) -> bool:
        op = self.graph.ops[index]
        if self.graph.is_view(index) or not self._is_plain(op):
            return False
        if op.kind.is_product or op.kind is Kind.BROADCAST or op.primitive in _MOVES:
            return True
        known = op.primitive in _UNARY | _BINARY | _REDUCTIONS
        return known and self._is_large(op)

    def _is_plain(self, op: Op) -> bool:
        """Return whether an operation has one result, and all its tensors have dtypes of the library."""
        dtypes = {self.workload.tensors[end].dtype for end in (*op.reads, *op.writes)}
        return len(op.writes) == 1 and dtypes <= _DTYPES

    def _is_large(self, op: Op) -> bool:
        ends = (*op.reads, *op.writes)
        largest = max(self.workload.tensors[end].elements.at(self.batch) for end in ends)
        return largest >= self.least_elements


def _same_calls(workload: Workload, least: int, batch: int) -> int:
    """Return the batch nearest to that of the trace at which the same tensors have as many elements as at `batch`."""
    reached = _reached(workload, least)
    above = bisect_right(reached, batch)
    first = reached[above - 1] if above else 1
    last = reached[above] - 1 if above < len(reached) else max(batch, workload.local_batch)
    return min(max(workload.local_batch, first), last)


@lru_cache(maxsize=64)
def _reached(workload: Workload, least: int) -> tuple[int, ...]:
    """Return the batches at which tensors reach so many elements, or reductions become long, ascending."""
    differences = {tensor.elements - Affine(least) for tensor in workload.tensors}
    differences |= {_beyond_short(workload, op) for op in walk(workload.ops) if op.kind is Kind.REDUCE and op.reads}
    return tuple(sorted({math.ceil(-by.fixed / by.per_sample) for by in differences if by.per_sample > 0}))


def _beyond_short(workload: Workload, op: Op) -> Affine:
    """Return by how many elements a reduction exceeds the longest that is not split, less one."""
    read, made = (workload.tensors[end].elements for end in (op.reads[0], op.writes[0]))
    return read - made * SHORT_REDUCTION - Affine(1)
