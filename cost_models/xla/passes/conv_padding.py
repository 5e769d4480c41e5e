"""Workload -> Workload: how much of an uneven padding XLA writes on GPUs.

cuDNN pads both ends alike. Where that is not enough, XLA writes an image with all of its padding for the convolution
(ConvPaddingLegalization), and one with what one end has more for the gradient of its weights. The gradient of a strided
grouped convolution's input reads the incoming gradient with zeros between and around its elements.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import RELAYOUT, UNEVEN_PAD, Kind, Op, Phase, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_LINE = 3  # dimensions of lines


@rule("conv-gradient-padding", source="ConvPaddingLegalization")
def conv_gradient_padding(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Gradients of weights read images that are padded for them anew, by what one end has more than the other.

    What one end has more in convolutions along lines that move by one is all of the padding (causal ones): such images
    are shared.
    """
    padded = {op.writes[0]: op for op in workload.ops if op.primitive == UNEVEN_PAD and _most_added(workload, op) > 1}
    tensors, anew = list(workload.tensors), dict[int, int]()
    ops: list[Op] = []
    for op in workload.ops:
        for read in (read for read in op.reads if read in padded and _is_of_weights(workload, op)):
            if read not in anew and not _is_causal(workload, padded[read]):
                source, added = tensors[padded[read].reads[0]], _added(workload, padded[read])
                shape = tuple(dim + Affine(more % 2) for dim, more in zip(source.shape, added, strict=True))
                anew[read] = len(tensors)
                tensors.append(replace(tensors[read], shape=shape))
                ops.append(replace(padded[read], writes=(anew[read],), phase=op.phase, layer=op.layer))
        of_weights = _is_of_weights(workload, op)
        ops.append(replace(op, reads=tuple(anew.get(read, read) for read in op.reads)) if of_weights else op)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops)) if anew else workload


def _is_of_weights(workload: Workload, op: Op) -> bool:
    return (
        op.kind is Kind.CONV
        and op.phase is Phase.BACKWARD
        and all(workload.tensors[write].elements.constant for write in op.writes)
    )


def _is_causal(workload: Workload, pad: Op) -> bool:
    """Whether a line is padded for a convolution that makes one as long as it was."""
    source = workload.tensors[pad.reads[0]].shape
    readers = (op for op in workload.ops if pad.writes[0] in op.reads and op.phase is Phase.FORWARD)
    made = (workload.tensors[op.writes[0]].shape for op in readers if op.kind is Kind.CONV)
    return len(source) == _LINE and any(shape[1:-1] == source[1:-1] for shape in made)


@rule("conv-crop-removal", source="programs compiled for A100: cuDNN takes the padding itself")
def conv_crop_removal(workload: Workload, profile: Profile, local_batch: int) -> Workload:
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


@rule("conv-padding-sharing", source="HloCSE")
def conv_padding_sharing(workload: Workload, profile: Profile, local_batch: int) -> Workload:
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


@rule("grouped-gradient-dilation", source="programs compiled for A100: strided grouped convolutions")
def grouped_gradient_dilation(workload: Workload, profile: Profile, local_batch: int) -> Workload:
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


def _is_grouped_gradient(op: Op) -> bool:
    return op.kind is Kind.CONV and op.phase is Phase.BACKWARD and bool(op.gemm) and op.gemm[0] != Affine(1)
