"""`Recording`: a traced training step at one batch size: its tensors and operations as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from autoplan.worker.trace.primitives import Cost
from cost_models.workload.workload import Kind, Phase


@dataclass(frozen=True, slots=True)
class RawOp:
    """One operation at one batch size. Its fields are those of `cost_models.workload.workload.Op`."""

    kind: Kind
    primitive: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: Cost
    phase: Phase
    layer: str
    region: int
    repeat: int = 1
    body: tuple[RawOp, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(slots=True)
class Recording:
    """Tensors as (dtype, shape), operations in program order, and primitives without a rule.

    dispatches  equations at the top level, each of which is dispatched when the program runs eagerly
    """

    tensors: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    ops: list[RawOp] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    dispatches: int = 0
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, aval: Any) -> int:
        """Add a tensor of this abstract value, and return its index."""
        self.tensors.append((_dtype_name(aval), tuple(getattr(aval, "shape", ()))))
        return len(self.tensors) - 1


def _dtype_name(aval: Any) -> str:
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return "token"
    name = str(dtype)
    return "key" if name.startswith("key<") else name
