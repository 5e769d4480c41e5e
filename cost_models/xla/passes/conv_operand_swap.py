"""Workload -> Workload: what XLA copies on GPUs for the gradient of a transposed or dilated convolution's weights.

Batch and features change places in both operands of that gradient, and cuDNN reads neither so: both are written anew.
Where the padding of a transposed one is uneven cuDNN does not dilate either: the input is then written with its zeros
between, and the incoming gradient with its padding. Along lines it never does: the input is written with zeros between
and around, the incoming gradient as it is. What several such gradients read of one image is one copy: XLA merges equal
operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import RELAYOUT, STRIDED_CONVOLUTION, UNEVEN_PAD, Kind, Op, Phase, Tensor, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_LINE = 3  # dimensions of lines
_Shape = tuple[Affine, ...]


@rule("conv-operand-swap", source="programs compiled for A100: gradients of weights of transposed convolutions")
def conv_operand_swap(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Copies of input and incoming gradient before each gradient of a transposed or dilated convolution's weights."""
    enlarged = _enlarged(workload)
    if not enlarged and not any(op.primitive == STRIDED_CONVOLUTION for op in workload.ops):
        return workload
    padded = {op.reads[0]: op.writes[0] for op in workload.ops if op.primitive == UNEVEN_PAD}
    tensors = list(workload.tensors)
    beside: dict[int, int] = {}
    copies: dict[tuple[int, _Shape], int] = {}
    ops: list[Op] = []
    for op in workload.ops:
        if not _is_of_weights(workload, op, enlarged):
            ops.append(op)
            continue
        image, incoming = op.reads[:2]
        shape = tensors[image].shape
        if image in enlarged and len(shape) == _LINE:
            shape = _padded_line(shape, tensors[incoming].shape, tensors[op.writes[0]].shape)
        elif incoming in padded and image in enlarged:
            shape = _dilated(shape, tensors[incoming].shape)
            incoming = padded[incoming]
        if (image, shape) not in copies:
            copies[image, shape] = len(tensors)
            tensors.append(replace(tensors[image], shape=shape))
            made = (copies[image, shape],)
            ops.append(Op(Kind.MOVE, RELAYOUT, (image,), made, phase=op.phase, layer=op.layer, region=op.region))
        beside[incoming] = len(tensors)
        tensors.append(tensors[incoming])
        ops.append(replace(op, reads=(copies[image, shape], beside[incoming], *op.reads[2:])))
    along = {incoming for incoming in beside if len(tensors[incoming].shape) > _LINE}
    ordered = _before_readers(list(_with_results(ops, beside, along)), beside)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ordered))


def _with_results(ops: Sequence[Op], beside: dict[int, int], along: set[int]) -> Iterator[Op]:
    """What makes an incoming gradient makes its copy along with it, except where that is a library's call or a line."""
    for op in ops:
        copied = [write for write in op.writes if write in beside]
        if not copied:
            yield op
        elif op.kind in (Kind.ELEMENTWISE, Kind.MOVE) and along.issuperset(copied):
            yield replace(op, writes=(*op.writes, *(beside[write] for write in copied)))
        else:
            yield op
            for write in copied:
                yield replace(op, kind=Kind.MOVE, primitive=RELAYOUT, reads=(write,), writes=(beside[write],))


def _before_readers(ops: Sequence[Op], beside: dict[int, int]) -> Iterator[Op]:
    """What makes a copy stands before what reads it: padding may be written after the gradient of the weights.

    It stands before the copy of the image, too: what it reads is gone then.
    """
    copies = frozenset(beside.values())
    source = {write: index for index, op in enumerate(ops) for write in copies.intersection(op.writes)}
    done: set[int] = set()
    for index, op in enumerate(ops):
        along = ops[index + 1].reads if op.primitive == RELAYOUT and index + 1 < len(ops) else ()
        missing = {source[read] for read in copies.intersection((*op.reads, *along))} - done
        for one in (*sorted(missing), index):
            if one not in done:
                done.add(one)
                yield ops[one]


def _enlarged(workload: Workload) -> frozenset[int]:
    """What convolutions of the forward pass make larger images of."""
    return frozenset(
        op.reads[0]
        for op in workload.ops
        if op.kind is Kind.CONV and op.phase is Phase.FORWARD and _sides_grow(workload.tensors, op)
    )


def _sides_grow(tensors: Sequence[Tensor], op: Op) -> bool:
    """Channels last: all dimensions between the first and the last."""
    before, after = tensors[op.reads[0]].shape[1:-1], tensors[op.writes[0]].shape[1:-1]
    pairs = list(zip(before, after, strict=False))
    return bool(pairs) and all(one.constant and other.constant and other.fixed > one.fixed for one, other in pairs)


def _is_of_weights(workload: Workload, op: Op, enlarged: frozenset[int]) -> bool:
    """A convolution of the backward pass whose result does not grow with the batch, over such an input or strided."""
    whole = not op.gemm or op.gemm[0] == Affine(1)
    return (
        op.kind is Kind.CONV
        and op.phase is Phase.BACKWARD
        and len(op.reads) > 1
        and (op.reads[0] in enlarged or (op.primitive == STRIDED_CONVOLUTION and whole))
        and all(dim.constant for dim in workload.tensors[op.writes[0]].shape)
    )


def _dilated(image: _Shape, incoming: _Shape) -> _Shape:
    """The image with zeros between its elements, as many as the convolution's stride asks for."""
    return (image[0], *_spread(image[1:-1], incoming[1:-1]), image[-1])


def _padded_line(line: _Shape, incoming: _Shape, kernel: _Shape) -> _Shape:
    """Zeros between and around elements, so that the incoming gradient fits as many times as the kernel is long."""
    return (line[0], incoming[1] + kernel[0] - Affine(1), line[-1])


def _spread(sides: Sequence[Affine], larger: Sequence[Affine]) -> Iterator[Affine]:
    for side, large in zip(sides, larger, strict=True):
        stride = max(1, round(large.fixed / side.fixed))
        yield Affine(stride * (side.fixed - 1) + 1)
