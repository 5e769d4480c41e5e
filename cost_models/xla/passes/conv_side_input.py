"""Workload -> Workload: gradients that a library's convolution adds to another one itself, on GPUs.

The gradient of the input of a 1 x 1 convolution is a convolution like those of the forward pass, and cuDNN adds what it
is told to to the result of such a one (its side input). The sum is then written in place of that result.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_ADDED = frozenset({"float32", "float16"})
"""What is added in the dtype of the convolution; bfloat16 is added in float32 by a kernel of its own."""
_CHANNELS = 2  # dimensions of a kernel, read and written, behind those of its window


@rule("conv-side-input", source="CudnnFusedConvRewriter")
def conv_side_input(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """The workload with convolutions that read what is added to their results and write the sums."""
    readers: dict[int, int] = {}
    made_by: dict[int, int] = {}
    for index, op in enumerate(workload.ops):
        made_by.update(dict.fromkeys(op.writes, index))
        for read in op.reads:
            readers[read] = readers.get(read, 0) + 1
    lasting = {*workload.outputs, *(v.result for v in workload.variables)}
    ops: list[Op | None] = list(workload.ops)
    for index, op in enumerate(workload.ops):
        if op.primitive != "add_any" or op.phase is not Phase.BACKWARD or len(op.reads) != 2:
            continue
        for own, other in (op.reads, op.reads[::-1]):
            source = ops[made_by[own]] if own in made_by else None
            alone = readers[own] == 1 and own not in lasting and own != other
            if source is not None and alone and source.writes == (own,) and _adds(workload, source):
                ops[made_by[own]] = None
                ops[index] = replace(source, reads=(*source.reads, other), writes=op.writes)
                break
    if None not in ops:
        return workload
    return replace(workload, ops=tuple(op for op in ops if op is not None))


def _adds(workload: Workload, op: Op) -> bool:
    """Whether this is a convolution of all channels with windows of one element, at every place."""
    if op.kind is not Kind.CONV or op.phase is not Phase.BACKWARD or len(op.reads) != 2:
        return False
    image, kernel, made = (workload.tensors[end] for end in (*op.reads, op.writes[0]))
    whole = not op.gemm or op.gemm[0] == Affine(1)
    window = all(side == Affine(1) for side in kernel.shape[:-_CHANNELS]) and kernel.elements.constant
    return whole and window and image.shape[:-1] == made.shape[:-1] and made.dtype in _ADDED
