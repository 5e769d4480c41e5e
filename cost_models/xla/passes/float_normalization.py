"""Converts arithmetic in a narrow float that a device lacks (bfloat16, float16) to float32, with conversions.

XLA converts the operands of an unsupported operation up and its result down, and then drops every conversion down that
is followed by a conversion up (`xla_allow_excess_precision`, its default). So a chain of elementwise operations carries
float32 from end to end, and its values in memory are float32, except where a reader works on narrow floats: products,
and operations that only move data.

XLA:CPU drops conversions only where the step itself converts the result of a product up (`rounds`): values of a chain
in memory are narrow, and each reader converts them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import (
    ACROSS,
    CONVERT,
    FLATTEN,
    NARROW_SUM,
    Kind,
    Op,
    Tensor,
    Workload,
    walk,
)
from cost_models.xla.dataflow import HALVES, WIDE, is_part_of_convolution
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_ARITHMETIC = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.REDUCE, Kind.POOL})
_ORDERS = frozenset({"transpose", FLATTEN})


@rule("float-normalization", source="FloatNormalization, and SimplifyFPConversions with xla_allow_excess_precision")
def float_normalization(
    workload: Workload, profile: Profile, local_batch: int, *, products: bool = False, rounds: bool = False
) -> Workload:
    """Return the workload with narrow arithmetic in float32, and conversions where narrow values are read.

    In the profile's narrow dtypes only its native primitives run; in other dtypes all do, but for long chains (erfc),
    which are expanded in float32 whatever the dtype.

    products  products and convolutions run in float32, too, and read float32 from memory
    rounds    every result is rounded
    """
    if not any(tensor.dtype in HALVES for tensor in workload.tensors):
        return workload
    widening = _Widening(workload, profile.narrow, profile.native, products, rounds)
    ops = tuple(widening.rewritten(workload.ops))
    lasting = {*workload.outputs, *(v.result for v in workload.variables)}
    idle = {CONVERT, *(_ORDERS if rounds else ())}
    return replace(workload, tensors=tuple(widening.tensors), ops=_without_idle(ops, idle, lasting))


class _Widening:
    """Float32 values by narrow ones.

    wide         the float32 value that a narrow value was rounded from or converted to
    products_of  the float32 result of a product, by its rounded result
    transposed   the same, by the transpose of the rounded result
    padding      operations that pad or reorder the operand of a product
    multiplied   operands of products, before they are reordered or padded as well
    """

    def __init__(
        self, workload: Workload, narrow: frozenset[str], native: frozenset[str], products: bool, rounds: bool
    ) -> None:
        self.tensors: list[Tensor] = list(workload.tensors)
        self.narrow, self.native, self.products, self.rounds = narrow, native, products, rounds
        self.wide: dict[int, int] = {}
        self.products_of: dict[int, int] = {}
        self.transposed: dict[int, int] = {}
        self.padding: dict[int, Op] = {}
        self.multiplied = {read for op in workload.ops if op.kind.is_product for read in op.reads}
        moved = [op for op in workload.ops if op.kind is Kind.MOVE and not self.multiplied.isdisjoint(op.writes)]
        self.multiplied.update([op.reads[0] for op in moved])

    def rewritten(self, ops: Sequence[Op]) -> Iterator[Op]:
        for op in ops:
            if self.rounds and (is_part_of_convolution(op) or (op.kind is Kind.MOVE and op.primitive in _ORDERS)):
                self.padding[op.writes[0]] = op
            if op.primitive == "transpose" and op.kind is Kind.VIEW and op.reads[0] in self.products_of:
                self.transposed[op.writes[0]] = self.products_of[op.reads[0]]
            if op.primitive == CONVERT:
                yield self._conversion(op)
            elif op.kind in _ARITHMETIC or (op.kind is Kind.SCATTER and self.rounds):
                yield from self._arithmetic(op)
            elif op.kind.is_product and self.products:
                yield from self._all_raised(op)
                yield from self._in_float32(op)
            elif op.body:
                stacks = self._stacks(op)
                for stack in stacks:
                    yield from self._raised(op, stack)
                op = _reading(op, {stack: self.wide[stack] for stack in stacks}) if stacks else op
                yield replace(op, body=tuple(self.rewritten(op.body)))
            else:
                yield op

    def _stacks(self, op: Op) -> list[int]:
        """Return the stacks of which a loop reads a part in each iteration: they are converted up before the loop."""
        shapes = {read: self.tensors[read].shape for read in op.reads if self.tensors[read].dtype in self.narrow}
        return [read for read, shape in shapes.items() if self.rounds and shape and shape[0] == Affine(op.repeat)]

    def _conversion(self, op: Op) -> Op:
        """Note a conversion down; a conversion up again is a view of the value before."""
        source, made = op.reads[0], op.writes[0]
        if self.rounds:
            return self._explicit_conversion(op, source, made)
        if source in self.wide and self.tensors[made].dtype == WIDE:
            return replace(op, kind=Kind.VIEW, reads=(self.wide[source],))
        if self.tensors[made].dtype in HALVES and self.tensors[source].dtype == WIDE:
            self.wide[made] = source
        return op

    def _explicit_conversion(self, op: Op, source: int, made: int) -> Op:
        """Return a conversion up that the step itself makes: a product's result was float32 before it was rounded.

        No rounding is left between a product and its transposition, but they do not become one product either.
        """
        if self.tensors[made].dtype != WIDE or self.tensors[source].dtype not in HALVES:
            return op
        if source in self.transposed:
            return replace(op, primitive=ACROSS, reads=(self.transposed[source],), flops=self.tensors[made].elements)
        whole = self.products_of.get(source, self.wide.get(source))
        self.wide.setdefault(source, made)
        return op if whole is None else replace(op, kind=Kind.VIEW, reads=(whole,))

    def _arithmetic(self, op: Op) -> Iterator[Op]:
        if self._runs_wide(op):
            yield from self._rounded(op) if self.rounds else self._in_float32(op)
        else:
            yield op

    def _rounded(self, op: Op) -> Iterator[Op]:
        """Yield an operation with conversions of its own, which XLA makes after a library has taken sums.

        Operands of products are converted once for both.
        """
        shared: dict[int, int] = {}
        if op.primitive == "reduce_sum":
            op = replace(op, primitive=NARROW_SUM)
            for read in self.multiplied.intersection(op.reads):
                yield from self._raised(op, read)
                shared[read] = self.wide.get(read, read)
        known, self.wide = self.wide, shared
        yield from self._all_raised(op)
        yield from self._in_float32(op)
        self.wide = known

    def _all_raised(self, op: Op) -> Iterator[Op]:
        for read in dict.fromkeys(op.reads):
            yield from self._raised(op, read)

    def _raised(self, op: Op, read: int) -> Iterator[Op]:
        """Yield the conversion up of a narrow value in memory, unless it exists already."""
        tensor = self.tensors[read]
        if tensor.dtype in HALVES and read not in self.wide:
            if (padding := self.padding.get(read)) is not None:
                yield from self._raised(op, padding.reads[0])
            self.wide[read] = len(self.tensors)
            self.tensors.append(replace(tensor, dtype=WIDE))
            if padding is not None:
                yield replace(padding, reads=(self.wide[padding.reads[0]],), writes=(self.wide[read],))
            else:
                yield Op(Kind.ELEMENTWISE, CONVERT, (read,), (self.wide[read],), phase=op.phase, layer=op.layer)

    def _in_float32(self, op: Op) -> Iterator[Op]:
        made: dict[int, int] = {}
        for write in (write for write in op.writes if self.tensors[write].dtype in HALVES):
            made[write] = len(self.tensors)
            self.tensors.append(replace(self.tensors[write], dtype=WIDE))
        reads = tuple(self.wide.get(read, read) for read in op.reads)
        yield replace(op, reads=reads, writes=tuple(made.get(write, write) for write in op.writes))
        for write, wide in made.items():
            down = replace(op, kind=Kind.ELEMENTWISE, primitive=CONVERT, reads=(wide,), writes=(write,), gemm=())
            yield replace(down, flops=self.tensors[write].elements)
        if not self.rounds:
            self.wide.update(made)
        elif op.kind.is_product:
            self.products_of.update((w, wide) for w, wide in made.items() if self.tensors[w].dtype in self.narrow)

    def _runs_wide(self, op: Op) -> bool:
        """Return whether an operation runs in float32; its operands count, because comparisons write booleans."""
        dtypes = {self.tensors[end].dtype for end in (*op.reads, *op.writes)} & HALVES
        if op.kind is Kind.EXPENSIVE:
            return bool(dtypes)
        return op.primitive not in self.native and not dtypes.isdisjoint(self.narrow)


def _reading(op: Op, names: Mapping[int, int]) -> Op:
    """Return an operation and its body with other names for their operands."""
    body = tuple(_reading(inner, names) for inner in op.body)
    return replace(op, reads=tuple(names.get(read, read) for read in op.reads), body=body)


def _without_idle(ops: tuple[Op, ...], idle: Set[str], lasting: Iterable[int]) -> tuple[Op, ...]:
    """Return the operations without those of these primitives whose results have no reader, again and again."""
    while True:
        read = {*lasting, *(end for op in walk(ops) for end in (*op.reads, *op.results))}
        kept = tuple(_kept(ops, idle, read))
        if sum(1 for _ in walk(kept)) == sum(1 for _ in walk(ops)):
            return kept
        ops = kept


def _kept(ops: Sequence[Op], idle: Set[str], read: set[int]) -> Iterator[Op]:
    for op in ops:
        if op.primitive not in idle or read.intersection(op.writes):
            yield replace(op, body=tuple(_kept(op.body, idle, read))) if op.body else op
