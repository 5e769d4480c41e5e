"""Makes broadcasts explicit: adds an operation for each operand that is smaller than the result.

XLA broadcasts operands first, and the broadcast of a value to a shape is one value for the whole step, bounds of values
included. This matters where not every reader can compute the broadcast itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Tensor, Workload
from cost_models.xla.dataflow import ONE_BY_ONE
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_BOUNDS = {"max": "lower", "gt": "lower", "ge": "lower", "min": "upper", "lt": "upper", "le": "upper"}
"""Primitives that bound values from below or above, or compare them with that bound: ReLU and its like."""


@rule("explicit-broadcasts", source="StableHLO broadcasts operands explicitly; HloCSE merges them")
def explicit_broadcasts(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with an operation for every broadcast; broadcasts that add no elements are views."""
    tensors = list(workload.tensors)
    ops = tuple(_Body(tensors).rewritten(workload.ops))
    return replace(workload, tensors=tuple(tensors), ops=ops)


class _Body:
    """The operations of the step, or of one iteration of a loop.

    made  the broadcast, by its operand (or bound) and its result
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.root: dict[int, int] = {}
        self.made: dict[tuple[int | str, Tensor], int] = {}

    def rewritten(self, ops: Sequence[Op]) -> Iterator[Op]:
        for op in ops:
            if op.kind is Kind.VIEW and op.reads:
                self.root[op.writes[0]] = self._of(op.reads[0])
            if op.kind is Kind.BROADCAST and op.reads:
                yield self._broadcast(op)
            elif op.kind in ONE_BY_ONE:
                yield from self._explicit(op)
            elif op.body:
                yield replace(op, body=tuple(_Body(self.tensors).rewritten(op.body)))
            else:
                yield op

    def _of(self, tensor: int) -> int:
        return self.root.get(tensor, tensor)

    def _elements(self, tensor: int) -> Affine:
        return self.tensors[tensor].elements

    def _broadcast(self, op: Op) -> Op:
        """Return a view where the broadcast adds no element, or where the same broadcast exists already."""
        source, made = self._of(op.reads[0]), op.writes[0]
        same = self._elements(source) == self._elements(made)
        named = source if same else self.made.setdefault((source, self.tensors[made]), made)
        if named == made:
            return op
        self.root[made] = named
        return replace(op, kind=Kind.VIEW, reads=(named,))

    def _explicit(self, op: Op) -> Iterator[Op]:
        shape, elements = self.tensors[op.writes[0]].shape, self._elements(op.writes[0])
        reads = []
        for read in op.reads:
            source = self._of(read)
            if self._elements(source) != elements:
                like = Tensor(self.tensors[source].dtype, shape)
                yield from self._once(op, source, like, (source,))
                read = self.made[source, like]
            reads.append(read)
        if op.primitive in _BOUNDS and len(reads) == 1:
            bound, like = _BOUNDS[op.primitive], self.tensors[reads[0]]
            yield from self._once(op, bound, like, ())
            reads.append(self.made[bound, like])
        yield replace(op, reads=tuple(reads))

    def _once(self, op: Op, source: int | str, made: Tensor, reads: tuple[int, ...]) -> Iterator[Op]:
        """Yield the broadcast of a tensor or a constant, unless it exists already."""
        if (source, made) not in self.made:
            self.made[source, made] = len(self.tensors)
            self.tensors.append(made)
            writes = (self.made[source, made],)
            yield Op(Kind.BROADCAST, "broadcast_in_dim", reads, writes, phase=op.phase, layer=op.layer)
