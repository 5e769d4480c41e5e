"""The job that asks a compiler: which batch, which target, and the answer as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoplan.runtime.data import DataFacts
from autoplan.worker import lower
from autoplan.worker.trace.job import training_batch
from cost_models.compilers import CompilerTarget
from cost_models.config import TrainConfig


def prepare(options: Mapping[str, Any]) -> None:
    """What has to be set before a backend of JAX exists. `options` are those of `answer`."""
    lower.prepare(CompilerTarget.from_dict(options["target"]))


def answer(
    model: Any,
    arguments: dict[str, Any],
    facts: DataFacts,
    options: Mapping[str, Any],
    phase: Callable[[str], None],
) -> dict[str, Any]:
    """{"evidence": CompilerEvidence} or, where the program does not fit, {"too_large": message and bytes}.

    options  "target" (CompilerTarget), "lowered" (the configuration's plain values) and "versions"

    WorkloadError for data of which no batch of arrays can be had; else as `lower.lower`.
    """
    config = TrainConfig.from_dict(options["lowered"])
    target = CompilerTarget.from_dict(options["target"])
    batch = training_batch(model, arguments, facts, config.batch.global_size)
    phase("compile")
    try:
        found = lower.lower(model, batch, config, target, options["versions"])
    except lower.TooLarge as error:
        sizes = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        return {"too_large": {"message": str(error), **sizes}}
    return {"evidence": found.evidence.model_dump(mode="json")}
