"""Names the largest part of a training's memory: arrays of the step, the data held in memory, or the validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan import formatting
from autoplan.jobs.messages import Observation
from cost_models.estimate import Estimate
from cost_models.hardware.cluster import Cluster
from cost_models.memory import LargestTensors

NOTABLE_SHARE = 0.1
"""Share of the whole from which on a part is named."""


@dataclass(frozen=True)
class Part:
    """A part of the memory, in words, and its bytes."""

    words: str
    bytes: int


def largest_part_note(estimate: Estimate, observation: Observation, cluster: Cluster) -> str | None:
    """Return a note that names the largest part of the memory; None where no part has a notable share.

    Data that are held in memory count where the device is this CPU, whose memory they share.
    """
    memory = estimate.memory
    parts = [Part("the weights", memory.parameters), Part("the optimizer's state", memory.optimizer)]
    if estimate.largest is not None:
        parts.append(_of_tensors(estimate.largest, observation))
    if cluster.local and cluster.chip.kind == "cpu" and observation.data_bytes:
        parts.append(Part("the data set held in memory", observation.data_bytes))
    whole = memory.total
    if estimate.validation is not None and estimate.validation.memory.total > whole:
        whole = estimate.validation.memory.total
        rows = formatting.counted(estimate.validation.rows, "row")
        forward = whole - memory.parameters - memory.optimizer
        parts.append(Part(f"the validation batch of {rows} at once", forward))
    largest = max(parts, key=lambda part: part.bytes)
    if largest.bytes < NOTABLE_SHARE * max(whole, 1):
        return None
    return f"the largest part of the memory: {largest.words}, {formatting.size(largest.bytes)} (analytic)"


def _of_tensors(found: LargestTensors, observation: Observation) -> Part:
    shape = f"{' x '.join(map(str, found.shape))} {found.dtype}"
    name = _name(found, observation)
    return Part(f"{name} {shape}" if found.count == 1 else f"{found.count} arrays like the {name} {shape}", found.bytes)


def _name(found: LargestTensors, observation: Observation) -> str:
    """Return "logits" for arrays of the shape of an output with logits, else the layer that makes the array."""
    rows = found.shape[0] if found.shape else 0
    for output in observation.logits:
        if found.shape and _alike(found.shape, (rows, *output)):
            return "logits"
    made = found.layer or "the training step"
    return f"{found.purpose} of {made}"


def _alike(shape: Sequence[int], output: Sequence[int]) -> bool:
    """Return whether a shape is that of an output, perhaps with its positions in one dimension."""
    return tuple(shape) == tuple(output) or (
        shape[-1] == output[-1] and len(shape) == 2 and shape[0] % max(1, math.prod(output[1:-1])) == 0
    )
