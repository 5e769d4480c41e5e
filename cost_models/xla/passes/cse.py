"""Workload -> Workload: what is computed twice of the same values is computed once, as compilers see to before fusion.

An operation does not tell its constants and axes. So only those are merged that have none, or hardly ever others for
the same result: reductions and broadcasts of one value to one shape, transposes and paddings. Conversions are not
merged: those that stand for a dtype that a device lacks are made late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cost_models.workload.workload import FLATTEN, UNEVEN_PAD, Kind, Op, Tensor, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_PADS = ("pad", UNEVEN_PAD)
_UNARY = frozenset(
    {"abs", "ceil", "cos", "erf", "erfc", "exp", "expm1", "floor", "log", "log1p", "logistic", "neg", "not"}
    | {"round", "rsqrt", "sign", "sin", "sqrt", "square", "tan", "tanh", "transpose", FLATTEN, *_PADS}
)
_ALIKE = frozenset({Kind.REDUCE, Kind.BROADCAST})
_WITH_CONSTANTS = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE})


@rule("cse", source="HloCSE")
def cse(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """The workload in which the second of two equal operations is a view of the first one's result."""
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
            values = op.reads[:1] if op.primitive in _PADS else op.reads  # what is padded with is a constant
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
    return op.kind in _ALIKE or op.primitive in _UNARY or (op.kind in _WITH_CONSTANTS and len(op.reads) > 1)
