"""Extends the lifetimes of arrays that loops fill to the program's start, where XLA:CPU allocates them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind
from cost_models.xla.rules import rule

if TYPE_CHECKING:
    from cost_models.xla.buffers.liveness import Liveness


@rule("early-loop-stacks", source="programs compiled for CPU")
def early_loop_stacks(live: Liveness) -> None:
    """Allocate the stacks of loops when the program starts."""
    for kernel in live.flat:
        for write in kernel.writes if kernel.op.kind is Kind.LOOP else ():
            shape = live.workload.tensors[write].shape
            if write in live.birth and shape and shape[0] == Affine(kernel.op.repeat):
                live.birth[write] = 0
