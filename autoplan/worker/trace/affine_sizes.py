"""Fits each size as affine in the batch, from recordings at b and 2b; constant if their structures differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.worker.trace.recording import RawOp, Recording
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Op, Tensor


@dataclass(frozen=True)
class SizedTrace:
    """Tensors and operations with affine sizes.

    reason  why the sizes are only valid for one batch; empty if they are valid for every batch
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    reason: str = ""


def fit_affine(batch: int, at_batch: Recording, at_double: Recording) -> SizedTrace:
    """Fit affine sizes to two recordings; if their structures differ, return the constant sizes of the first."""
    reason = _difference(at_batch, at_double)
    if reason:
        return constant_sizes(at_batch, reason)
    tensors = tuple(
        Tensor(dtype, tuple(Affine.through(batch, one, two) for one, two in zip(shape, double, strict=True)))
        for (dtype, shape), (_, double) in zip(at_batch.tensors, at_double.tensors, strict=True)
    )
    if any(sum(not dim.constant for dim in tensor.shape) > 1 for tensor in tensors):
        return constant_sizes(at_batch, "a tensor grows with the square of the batch")
    ops = zip(at_batch.ops, at_double.ops, strict=True)
    return SizedTrace(tensors, tuple(_op(batch, one, two) for one, two in ops))


def constant_sizes(recording: Recording, reason: str) -> SizedTrace:
    """Return the sizes of one recording as constants."""
    tensors = tuple(Tensor(dtype, tuple(Affine(size) for size in shape)) for dtype, shape in recording.tensors)
    return SizedTrace(tensors, tuple(_op(1, op, op) for op in recording.ops), reason)


def _difference(one: Recording, two: Recording) -> str:
    if len(one.ops) != len(two.ops) or len(one.tensors) != len(two.tensors):
        return "the number of operations depends on the batch"
    for (dtype, shape), (other_dtype, other_shape) in zip(one.tensors, two.tensors, strict=True):
        if dtype != other_dtype or len(shape) != len(other_shape):
            return "a tensor's dtype or rank depends on the batch"
    if one.outputs != two.outputs or not _same(one.ops, two.ops):
        return "the operations depend on the batch"
    return ""


def _same(one: Sequence[RawOp], two: Sequence[RawOp]) -> bool:
    return len(one) == len(two) and all(
        (a.primitive, a.reads, a.writes, a.repeat) == (b.primitive, b.reads, b.writes, b.repeat)
        and _same(a.body, b.body)
        for a, b in zip(one, two, strict=True)
    )


def _op(batch: int, one: RawOp, two: RawOp) -> Op:
    gemm = zip(one.cost.gemm, two.cost.gemm, strict=True)
    body = zip(one.body, two.body, strict=True)
    return Op(
        kind=one.kind,
        primitive=one.primitive,
        reads=one.reads,
        writes=one.writes,
        flops=Affine.through(batch, one.cost.flops, two.cost.flops),
        gemm=tuple(Affine.through(batch, size, double) for size, double in gemm),
        repeat=one.repeat,
        body=tuple(_op(batch, inner, other) for inner, other in body),
        results=one.results,
        phase=one.phase,
        layer=one.layer,
        region=one.region,
    )
