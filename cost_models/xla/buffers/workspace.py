"""Adds the scratch memory that library kernels (matrix products) need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.workload.workload import Kind
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.rules import rule

if TYPE_CHECKING:
    from cost_models.xla.buffers.liveness import Liveness


@rule("dot-workspace", source="cuBLAS workspace of XLA:GPU before Ampere")
def dot_workspace(live: Liveness, *, size: int) -> None:
    """Add the scratch of a library's matrix product, in bytes."""
    for index, kernel in enumerate(live.flat):
        if kernel.op.kind is Kind.DOT:
            live.scratch.append((-1, index, index, size, Purpose.WORKSPACE.value))
