"""Workload -> Workload: arithmetic in a narrow float that a device has no units for runs in float32.

XLA converts the operands of such an operation up and its result down (float normalization), and then drops every
conversion down that is followed by one up (`xla_allow_excess_precision`, its default). So a chain of elementwise
operations carries float32 from end to end, and what is kept of it is float32, except where something reads it that
does work on narrow floats: products, and whatever only moves data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cost_models.workload import CONVERT, Kind, Op, Tensor, Workload, walk

WIDE = "float32"
_ARITHMETIC = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.REDUCE, Kind.POOL})
_HALVES = frozenset({"bfloat16", "float16"})


def widened(workload: Workload, narrow: frozenset[str], native: frozenset[str], products: bool = False) -> Workload:
    """The workload with narrow arithmetic in float32, and conversions where narrow values are read.

    narrow  dtypes in which only the primitives of `native` run; in other dtypes all do, but for long chains (erfc),
            which are expanded in float32 whatever the dtype
    products  products and convolutions run in float32, too, and read float32 from memory
    """
    if not any(tensor.dtype in _HALVES for tensor in workload.tensors):
        return workload
    widening = _Widening(workload, narrow, native, products)
    ops = tuple(widening.rewritten(workload.ops))
    lasting = {*workload.outputs, *(v.result for v in workload.variables)}
    return replace(workload, tensors=tuple(widening.tensors), ops=_without_idle_conversions(ops, lasting))


class _Widening:
    """`wide` names the float32 value of which a narrow one is the rounding."""

    def __init__(self, workload: Workload, narrow: frozenset[str], native: frozenset[str], products: bool) -> None:
        self.tensors: list[Tensor] = list(workload.tensors)
        self.narrow, self.native, self.products = narrow, native, products
        self.wide: dict[int, int] = {}

    def rewritten(self, ops: Sequence[Op]) -> Iterator[Op]:
        for op in ops:
            if op.primitive == CONVERT:
                yield self._conversion(op)
            elif op.kind in _ARITHMETIC:
                yield from self._arithmetic(op)
            elif op.kind.is_product and self.products:
                for read in dict.fromkeys(op.reads):
                    yield from self._raised(op, read)
                yield from self._in_float32(op)
            elif op.body:
                yield replace(op, body=tuple(self.rewritten(op.body)))
            else:
                yield op

    def _conversion(self, op: Op) -> Op:
        """Down: remembered. Up again: the value that was there before."""
        source, made = op.reads[0], op.writes[0]
        if source in self.wide and self.tensors[made].dtype == WIDE:
            return replace(op, kind=Kind.VIEW, reads=(self.wide[source],))
        if self.tensors[made].dtype in _HALVES and self.tensors[source].dtype == WIDE:
            self.wide[made] = source
        return op

    def _arithmetic(self, op: Op) -> Iterator[Op]:
        if self._runs_wide(op):
            yield from self._in_float32(op)
        else:
            yield op

    def _raised(self, op: Op, read: int) -> Iterator[Op]:
        """A conversion up of what is in memory in a narrow dtype."""
        tensor = self.tensors[read]
        if tensor.dtype in _HALVES and read not in self.wide:
            self.wide[read] = len(self.tensors)
            self.tensors.append(replace(tensor, dtype=WIDE))
            yield Op(Kind.ELEMENTWISE, CONVERT, (read,), (self.wide[read],), phase=op.phase, layer=op.layer)

    def _in_float32(self, op: Op) -> Iterator[Op]:
        rounded = [write for write in op.writes if self.tensors[write].dtype in _HALVES]
        for write in rounded:
            self.wide[write] = len(self.tensors)
            self.tensors.append(replace(self.tensors[write], dtype=WIDE))
        reads = tuple(self.wide.get(read, read) for read in op.reads)
        yield replace(op, reads=reads, writes=tuple(self.wide.get(write, write) for write in op.writes))
        for write in rounded:
            yield replace(op, kind=Kind.ELEMENTWISE, primitive=CONVERT, reads=(self.wide[write],), writes=(write,))

    def _runs_wide(self, op: Op) -> bool:
        """By the dtype of what it reads: comparisons of narrow values write booleans."""
        dtypes = {self.tensors[end].dtype for end in (*op.reads, *op.writes)} & _HALVES
        if op.kind is Kind.EXPENSIVE:
            return bool(dtypes)
        return op.primitive not in self.native and not dtypes.isdisjoint(self.narrow)


def _without_idle_conversions(ops: tuple[Op, ...], lasting: Iterable[int]) -> tuple[Op, ...]:
    """Conversions whose result nobody reads are not made."""
    read = {*lasting, *(end for op in walk(ops) for end in (*op.reads, *op.results))}
    return tuple(_kept(ops, read))


def _kept(ops: Sequence[Op], read: set[int]) -> Iterator[Op]:
    for op in ops:
        if op.primitive != CONVERT or read.intersection(op.writes):
            yield replace(op, body=tuple(_kept(op.body, read))) if op.body else op
