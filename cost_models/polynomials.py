"""Workload -> Workload: how many multiply-adds a processor spends on an element, where it is more than one.

Timed with jax 0.10.2 on two x86-64 server cores, which reach 200 billion elementwise multiply-adds a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cost_models.workload import CONVERT, Kind, Op, Tensor, Workload

_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "sin", "cos", "tan", "sinh", "cosh")
_MULTIPLY_ADDS = {**dict.fromkeys(_FUNCTIONS, 33), "pow": 340}
"""tanh and logistic of 64 KiB, on one core, take 330 ps an element, of 1 MiB 180 on two; a power 1,700."""
LONG_CHAIN = 5
"""So often what a polynomial of 16 terms counts: GELU with erfc takes 400 ps longer than a copy on both cores."""
_ROUNDING = 20
"""To 16 bits, by shifts and additions: a gate of tanh and logistic, which rounds five times, takes 1.0 to 1.5 ns longer
in bfloat16 on one core, one of GELU 0.5 ns on two."""
_HALVES = frozenset({"bfloat16", "float16"})


def as_polynomials(workload: Workload) -> Workload:
    """The workload with FLOPs as a processor's vector units work them out."""
    return replace(workload, ops=_counted(workload.ops, workload.tensors))


def _counted(ops: Sequence[Op], tensors: Sequence[Tensor]) -> tuple[Op, ...]:
    return tuple(replace(op, flops=op.flops * _times(op, tensors), body=_counted(op.body, tensors)) for op in ops)


def _times(op: Op, tensors: Sequence[Tensor]) -> int:
    if op.kind is Kind.EXPENSIVE:
        return LONG_CHAIN
    if op.primitive == CONVERT and op.writes and tensors[op.writes[0]].dtype in _HALVES:
        return _ROUNDING
    return _MULTIPLY_ADDS.get(op.primitive, 1)
