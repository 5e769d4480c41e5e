"""Workload -> Workload: what is broadcast by the way is broadcast by an operation of its own, once for each shape.

An operation may read values of fewer elements than it writes. XLA has no such operations: it broadcasts the values
first, and what broadcasts the same to the same shape is one value for the whole step, bounds of values included. That
matters where not every reader of a broadcast can take it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Tensor, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_ELEMENT_BY_ELEMENT = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE})
_BOUNDS = {"max": "lower", "gt": "lower", "ge": "lower", "min": "upper", "lt": "upper", "le": "upper"}
"""What bounds values from below or above, and what compares them with that bound afterwards: ReLU and its like."""


@rule("explicit-broadcasts", source="StableHLO broadcasts operands explicitly; HloCSE merges them")
def explicit_broadcasts(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """The workload with an operation for every broadcast; what only adds dimensions of one element is a view."""
    tensors = list(workload.tensors)
    ops = tuple(_Body(tensors).rewritten(workload.ops))
    return replace(workload, tensors=tuple(tensors), ops=ops)


class _Body:
    """The operations of the step, or of one iteration of a loop. `made` by what is broadcast, and to what."""

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
            elif op.kind in _ELEMENT_BY_ELEMENT:
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
        """A view where it adds no element, or where the same has been broadcast already."""
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
        """What broadcasts a tensor or a constant to this, where that has not been done yet."""
        if (source, made) not in self.made:
            self.made[source, made] = len(self.tensors)
            self.tensors.append(made)
            writes = (self.made[source, made],)
            yield Op(Kind.BROADCAST, "broadcast_in_dim", reads, writes, phase=op.phase, layer=op.layer)
