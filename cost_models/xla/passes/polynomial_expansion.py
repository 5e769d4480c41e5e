"""Raises the FLOPs of operations that cost a CPU many multiply-adds per element: exp, tanh, rounding, row sums.

Timed on two x86-64 server cores, which reach 200 billion elementwise multiply-adds a second. Plain loops where a
vectorised loop is usual are counted in the same unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from cost_models.workload.workload import ACROSS, CONVERT, NARROW_SUM, Kind, Op, Tensor, Workload
from cost_models.xla.dataflow import HALVES, LONG_CHAIN
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "sin", "cos", "tan", "sinh", "cosh")
_MULTIPLY_ADDS = {**dict.fromkeys(_FUNCTIONS, 33), "pow": 340}
"""tanh and logistic of 64 KiB, on one core, take 330 ps an element, of 1 MiB 180 on two; a power 1,700."""
_ROUNDING = 20
"""Rounding to 16 bits, by shifts and additions: a gate of tanh and logistic, which rounds five times, takes 1.0 to
1.5 ns longer in bfloat16 on one core, a gate of GELU 0.5 ns on two."""
_ROW_SUM, _COLUMN_SUM = 100, 360
"""Sums of numbers of 16 bits, in float32: a sliding window (`tree_reduction_rewriter.cc`) instead of a library's sum.
 0.3 to 0.7 ns an element along rows, 1.4 to 2.3 ns down columns of 64 to 131,072; those of float32 take 0.06."""
_ACROSS, _COLLIDING = 60, 320
"""Reading a matrix across its rows: 0.3 ns an element longer than along its rows, and up to 1.9 ns where a column's
elements lie whole pages apart, and so in one set of the cache (2,048 x 1,024 or 1,024 x 1,024 in float32)."""
_PAGE_BYTES = 4096


@rule("polynomial-expansion", source="kernels timed on two x86-64 server cores; PolynomialApproximationsVectorization")
def polynomial_expansion(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with the FLOPs that vector units of a CPU need."""
    return replace(workload, ops=_counted(workload.ops, workload.tensors))


def _counted(ops: Sequence[Op], tensors: Sequence[Tensor]) -> tuple[Op, ...]:
    return tuple(replace(op, flops=op.flops * _times(op, tensors), body=_counted(op.body, tensors)) for op in ops)


def _times(op: Op, tensors: Sequence[Tensor]) -> int:
    if op.kind is Kind.EXPENSIVE:
        return LONG_CHAIN
    if op.primitive == CONVERT and op.writes and tensors[op.writes[0]].dtype in HALVES:
        return _ROUNDING
    if op.primitive == NARROW_SUM:
        return _COLUMN_SUM if _keeps_last(op, tensors) else _ROW_SUM
    if op.primitive == ACROSS:
        return _ACROSS + _COLLIDING * _common_bytes(tensors[op.reads[0]]) // _PAGE_BYTES
    return _MULTIPLY_ADDS.get(op.primitive, 1)


def _keeps_last(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Return whether a sum keeps the last dimension: it runs down columns."""
    read, kept = tensors[op.reads[0]].shape, tensors[op.writes[0]].shape
    return bool(kept) and kept == read[-len(kept) :]


def _common_bytes(matrix: Tensor) -> int:
    """Return the largest part of a page that divides the distance between elements of a column."""
    row = matrix.shape[-1]
    return gcd(int(row.fixed * matrix.item_bytes), _PAGE_BYTES) if row.constant else 0
