"""Adds the memory of gradient accumulation at an update: averaged gradients and, on CPUs, accumulator copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.workload.workload import Role
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.fusion.kernel import in_update
from cost_models.xla.rules import rule

if TYPE_CHECKING:
    from cost_models.xla.buffers.liveness import Liveness


@rule("gradient-averages", source="programs compiled for A100 and CPU: gradient accumulation of Keras")
def gradient_averages(live: Liveness, *, sets: int) -> None:
    """Add sets of gradients at the start of an update: their average, and copies of the sums so far."""
    first = next((index for index, kernel in enumerate(live.flat) if in_update(kernel)), None)
    if first is not None:
        trained = (v.tensor for v in live.workload.variables if v.role is Role.TRAINABLE)
        one_set = round(sum(live.workload.tensors[tensor].bytes.fixed for tensor in trained))
        before = max(0, first - 1)
        live.scratch.append((-1, before, before, sets * one_set, Purpose.GRADIENTS.value))
