"""Merges equal operations on the same values (common subexpression elimination).

Operations do not hold their constants and axes. So only operations are merged that have none, or hardly ever different
ones for the same result: reductions and broadcasts of one value to one shape, transposes and paddings. Conversions are
not merged, because conversions for a dtype that a device lacks are made late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cost_models.workload.workload import FLATTEN, Kind, Op, Tensor, Workload
from cost_models.xla.dataflow import ONE_BY_ONE, PADS
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_UNARY = frozenset(
    {"abs", "ceil", "cos", "erf", "erfc", "exp", "expm1", "floor", "log", "log1p", "logistic", "neg", "not"}
    | {"round", "rsqrt", "sign", "sin", "sqrt", "square", "tan", "tanh", "transpose", FLATTEN, *PADS}
)
_ALIKE = frozenset({Kind.REDUCE, Kind.BROADCAST})


@rule("cse", source="HloCSE")
def cse(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload in which the second of two equal operations is a view of the first operation's result."""
    return replace(workload, ops=_merged(workload.ops, workload.tensors))


def _merged(ops: Sequence[Op], tensors: Sequence[Tensor]) -> tuple[Op, ...]:
    root: dict[int, int] = {}
    first_of: dict[int, int] = {}
    known: dict[Any, int] = {}
    merged: list[Op] = []
    for op in ops:
        if not first_of.keys().isdisjoint(op.reads):
            op = replace(op, reads=tuple(first_of.get(read, read) for read in op.reads))
        if op.kind is Kind.VIEW and op.reads:
            root[op.writes[0]] = root.get(op.reads[0], op.reads[0])
        elif _is_comparable(op):
            made = tensors[op.writes[0]]
            values = op.reads[:1] if op.primitive in PADS else op.reads  # the second operand of a padding is a constant
            key = op.primitive, tuple(root.get(read, read) for read in values), made.dtype, made.shape, op.region
            first = known.setdefault(key, op.writes[0])
            if first != op.writes[0]:
                root[op.writes[0]] = first_of[op.writes[0]] = first
                op = replace(op, kind=Kind.VIEW, reads=(first,))
        elif op.body:
            op = replace(op, body=_merged(op.body, tensors))
        merged.append(op)
    return tuple(merged)


def _is_comparable(op: Op) -> bool:
    if len(op.writes) != 1 or not op.reads:
        return False
    return op.kind in _ALIKE or op.primitive in _UNARY or (op.kind in ONE_BY_ONE and len(op.reads) > 1)
