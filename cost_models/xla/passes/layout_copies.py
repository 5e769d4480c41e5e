"""Copies into the layouts that convolutions want: of their weights on GPUs, of images and of moved features on TPUs."""

from __future__ import annotations

from dataclasses import replace

from cost_models.workload.workload import CONVERT, RELAYOUT, UNEVEN_PAD, Kind, Op, Role, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule
from cost_models.xla.tiling import convolutional_shapes

_PADS = ("pad", UNEVEN_PAD)


@rule("conv-weight-layout", source="cuDNN takes weights with output channels first; XLA:GPU layout assignment")
def conv_weight_layout(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """The weights of convolutions are copied into the library's layout; forward and backward share the copy.

    Weights that are converted anyway are laid out as they are converted.
    """
    named = {v.tensor: v.tensor for v in workload.variables if v.role is Role.TRAINABLE}
    tensors = list(workload.tensors)
    copies: dict[int, int] = {}
    ops: list[Op] = []
    for op in workload.ops:
        if (op.kind is Kind.VIEW or op.primitive == "rev") and op.reads and op.reads[0] in named:
            named[op.writes[0]] = named[op.reads[0]]
        weights = [named[read] for read in op.reads if read in named] if op.kind is Kind.CONV else []
        for weight in weights:
            if weight not in copies:
                copies[weight] = len(tensors)
                tensors.append(tensors[weight])
                ops.append(Op(Kind.COPY, "copy", (weight,), (copies[weight],), phase=op.phase, layer=op.layer))
        ops.append(replace(op, reads=tuple(copies[named[r]] if r in named else r for r in op.reads)) if weights else op)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops)) if copies else workload


@rule("conv-image-layout", source="XLA:TPU layout assignment: inputs of the program have the default layout")
def conv_image_layout(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """What comes from outside into convolutions is copied once into their layout, as they round it.

    It may be converted or padded on its way; forward and backward share the copy.
    """
    dtype = profile.product_dtype
    named = {end: end for end in workload.inputs}
    unpadded = dict(named)
    tensors = list(workload.tensors)
    copies: dict[int, int] = {}
    ops: list[Op] = []
    for op in workload.ops:
        if op.reads and op.reads[0] in named and (op.kind is Kind.VIEW or op.primitive in (CONVERT, *_PADS)):
            named[op.writes[0]] = named[op.reads[0]]
            unpadded[op.writes[0]] = unpadded[op.reads[0]] if op.primitive in _PADS else op.writes[0]
        images = [read for read in op.reads if read in named] if op.kind is Kind.CONV else []
        for image in images:
            if named[image] not in copies:
                copies[named[image]] = len(tensors)
                own = tensors[unpadded[image]]
                tensors.append(replace(own, dtype=dtype) if dtype and own.dtype == "float32" else own)
                made = (copies[named[image]],)
                ops.append(Op(Kind.COPY, "copy", (named[image],), made, phase=op.phase, layer=op.layer))
        reads = tuple(copies[named[read]] if read in images else read for read in op.reads)
        ops.append(replace(op, reads=reads) if images else op)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops)) if copies else workload


@rule("feature-relayout", source="programs compiled for TPU v5e: reshapes of features are copies")
def feature_relayout(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """A reshape that takes the features of images apart or joins them to others moves them: they lie across tiles.

    What is only converted afterwards is converted before it is moved.
    """
    images = convolutional_shapes(workload)

    def moves(op: Op) -> bool:
        if op.primitive != "reshape" or not op.reads:
            return False
        source, made = (workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
        return min(len(source), len(made)) > 1 and source[-1] != made[-1] and bool({source, made} & images)

    moved = {op.writes[0] for op in workload.ops if moves(op)}
    if not moved:
        return workload
    tensors = list(workload.tensors)
    for tensor, dtype in _converted_to(workload, moved).items():
        tensors[tensor] = replace(tensors[tensor], dtype=dtype)
    ops = (replace(op, kind=Kind.MOVE, primitive=RELAYOUT) if moves(op) else op for op in workload.ops)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops))


def _converted_to(workload: Workload, tensors: set[int]) -> dict[int, str]:
    """The dtype to which all that reads one of these tensors converts it, where that is so."""
    found: dict[int, set[str]] = {}
    for op in workload.ops:
        for read in tensors.intersection(op.reads):
            found.setdefault(read, set()).add(workload.tensors[op.writes[0]].dtype if op.primitive == CONVERT else "")
    return {tensor: min(dtypes) for tensor, dtypes in found.items() if len(dtypes) == 1 and dtypes != {""}}
