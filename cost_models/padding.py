"""Workload -> Workload: how much of an uneven padding XLA writes on GPUs.

cuDNN pads both ends alike, so only what one end has more is written before the convolution. Gradients of grouped
convolutions are worked out otherwise: that of the weights reads an image with all of the padding, which is written for
it anew, and that of a strided one's input reads the incoming gradient with zeros between and around its elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cost_models.affine import Affine
from cost_models.workload import RELAYOUT, UNEVEN_PAD, Kind, Op, Phase, Tensor, Workload


def with_uneven_padding_alone(workload: Workload) -> Workload:
    """The workload with smaller paddings, and paddings for gradients of grouped convolutions' weights."""
    read = {end for op in workload.ops if op.kind is Kind.CONV for end in op.reads}
    chosen = {op.writes[0] for op in workload.ops if op.primitive == UNEVEN_PAD and _most_added(workload, op) > 1}
    if chosen.isdisjoint(read):
        return workload
    padding = _Padding(workload, list(workload.tensors), chosen & read)
    ops = tuple(padding.rewritten())
    return replace(workload, tensors=tuple(padding.tensors), ops=ops)


def without_cropping(workload: Workload) -> Workload:
    """The workload without copies that lack the last rows of an image, which a strided convolution does not reach.

    cuDNN works the gradient of such a convolution's weights out from the whole image: it takes the padding and the
    stride of the convolution itself.
    """
    read_by: dict[int, set[Kind]] = {}
    for op in workload.ops:
        for read in op.reads:
            read_by.setdefault(read, set()).add(op.kind)

    def crops(op: Op) -> bool:
        if op.primitive != UNEVEN_PAD or read_by.get(op.writes[0]) != {Kind.CONV}:
            return False
        added = _added(workload, op)
        return max(added) <= 0 and min(added) < 0

    ops = tuple(replace(op, kind=Kind.VIEW) if crops(op) else op for op in workload.ops)
    return workload if ops == workload.ops else replace(workload, ops=ops)


def with_shared_padding(workload: Workload) -> Workload:
    """The same image padded to the same shape is padded once: XLA merges equal operations."""
    first: dict[tuple[int, tuple[Affine, ...]], int] = {}
    same: dict[int, int] = {}
    for op in workload.ops:
        if op.primitive == UNEVEN_PAD and op.phase is Phase.FORWARD:
            write = op.writes[0]
            one = first.setdefault((op.reads[0], workload.tensors[write].shape), write)
            if one != write:
                same[write] = one
    if not same:
        return workload
    left = (op for op in workload.ops if not (op.primitive == UNEVEN_PAD and op.writes[0] in same))
    ops = tuple(replace(op, reads=tuple(same.get(read, read) for read in op.reads)) for op in left)
    return replace(workload, ops=ops)


def with_dilated_gradients(workload: Workload) -> Workload:
    """The incoming gradients of strided grouped convolutions written out."""
    tensors = list(workload.tensors)
    ops: list[Op] = []
    for op in workload.ops:
        shape = _dilated(workload, op) if _is_grouped_gradient(op) else None
        if shape is not None:
            tensors.append(replace(tensors[op.reads[0]], shape=shape))
            made = (len(tensors) - 1,)
            ops.append(Op(Kind.MOVE, RELAYOUT, op.reads[:1], made, phase=op.phase, layer=op.layer, region=op.region))
            op = replace(op, reads=(*made, *op.reads[1:]))
        ops.append(op)
    return workload if len(ops) == len(workload.ops) else replace(workload, tensors=tuple(tensors), ops=tuple(ops))


def _dilated(workload: Workload, op: Op) -> tuple[Affine, ...] | None:
    """The result's sides and those of the kernel less one; None where the result is no larger image."""
    incoming, kernel, made = (workload.tensors[end].shape for end in (*op.reads[:2], op.writes[0]))
    if len(incoming) != len(made) or made[0] != incoming[0] or made[0].constant:
        return None
    if not all(large.fixed > small.fixed for small, large in zip(incoming[1:-1], made[1:-1], strict=True)):
        return None
    sides = (large + side - Affine(1) for large, side in zip(made[1:-1], kernel, strict=False))
    return (incoming[0], *sides, incoming[-1])


def _added(workload: Workload, op: Op) -> list[float]:
    before, after = (workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
    return [(large - small).fixed for small, large in zip(before, after, strict=True)]


def _most_added(workload: Workload, op: Op) -> float:
    return max(_added(workload, op), default=0)


@dataclass
class _Padding:
    """`whole` names the image with all of its padding, `sources` the operation that would write it."""

    workload: Workload
    tensors: list[Tensor]
    chosen: set[int]
    sources: dict[int, Op] = field(default_factory=dict)
    shapes: dict[int, tuple[Affine, ...]] = field(default_factory=dict)
    whole: dict[int, int] = field(default_factory=dict)

    def rewritten(self) -> Iterator[Op]:
        for op in self.workload.ops:
            if op.primitive == UNEVEN_PAD and op.writes[0] in self.chosen:
                self._shrink(op)
            padded = [read for read in op.reads if read in self.sources] if _is_grouped_gradient(op) else []
            for read in padded:
                if read not in self.whole:
                    yield self._padded_anew(read, op)
            yield replace(op, reads=tuple(self.whole[read] if read in padded else read for read in op.reads))

    def _shrink(self, op: Op) -> None:
        write = op.writes[0]
        self.sources[write], self.shapes[write] = op, self.tensors[write].shape
        source = self.workload.tensors[op.reads[0]].shape
        odd = (dim + Affine(more % 2) for dim, more in zip(source, _added(self.workload, op), strict=True))
        self.tensors[write] = replace(self.tensors[write], shape=tuple(odd))

    def _padded_anew(self, read: int, reader: Op) -> Op:
        self.whole[read] = len(self.tensors)
        self.tensors.append(replace(self.tensors[read], shape=self.shapes[read]))
        return replace(self.sources[read], writes=(self.whole[read],), phase=reader.phase, layer=reader.layer)


def _is_grouped_gradient(op: Op) -> bool:
    return op.kind is Kind.CONV and op.phase is Phase.BACKWARD and bool(op.gemm) and op.gemm[0] != Affine(1)
