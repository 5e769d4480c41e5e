"""Pads the operands and results of attention in one kernel on TPUs, whose layout the compiler does not choose.

A Pallas kernel takes its arrays with the last dimension across the lanes of a tile. Heads are mostly narrower than the
lanes, so queries, keys, values, their gradients and the result of attention are padded to whole tiles: heads of 64
double them. The products that make them write in this layout; transposes cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Tensor, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_MOST_WITHOUT_HEADS = 3  # dimensions of positions, segments and partial sums


@rule("attention-layout", source="operands of Pallas kernels (tpu_custom_call); programs compiled for TPU v5e")
def attention_layout(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with heads as wide as a tile in every array that attention in one kernel reads or writes."""
    touched = {
        end
        for op in workload.ops
        if op.kind is Kind.ATTENTION
        for end in (*op.reads, *op.writes)
        if _has_heads(workload, end)
    }
    if not touched:
        return workload
    for op in reversed(workload.ops):
        if op.primitive == "transpose" and op.writes[0] in touched:
            touched.add(op.reads[0])
    tensors = [
        _with_whole_lanes(tensor, profile.tile_lanes) if number in touched else tensor
        for number, tensor in enumerate(workload.tensors)
    ]
    return replace(workload, tensors=tuple(tensors))


def _has_heads(workload: Workload, end: int) -> bool:
    return len(workload.tensors[end].shape) > _MOST_WITHOUT_HEADS and workload.tensors[end].shape[-1].constant


def _with_whole_lanes(tensor: Tensor, lanes: int) -> Tensor:
    *outer, width = tensor.shape
    return replace(tensor, shape=(*outer, Affine(math.ceil(width.fixed / lanes) * lanes)))
