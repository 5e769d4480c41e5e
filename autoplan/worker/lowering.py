"""The job that asks a compiler: which batch, which target, and the answer as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoplan.errors import ConfigError, HardwareError, WorkloadError
from autoplan.plan import CompilerEvidence
from autoplan.runtime.data import DataFacts
from autoplan.worker import lower
from autoplan.worker.trace.job import training_batch
from cost_models import hlo
from cost_models.compiled import compiled_time
from cost_models.compilers import CompilerTarget
from cost_models.config import TrainConfig
from cost_models.hardware import Cluster


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
    """{"evidence": CompilerEvidence}.

    Where the program does not fit, {"too_large": message and bytes}; where the compiler does not take it,
    {"refused": why}.

    options  "target" (CompilerTarget), "cluster", "lowered" (the configuration's plain values), "versions", and
             "model_flops" of a micro-step on one device, where they are known

    WorkloadError for data of which no batch of arrays can be had; else as `lower.lower`.
    """
    config = TrainConfig.from_dict(options["lowered"])
    target = CompilerTarget.from_dict(options["target"])
    batch = training_batch(model, arguments, facts, config.batch.global_size)
    phase("compile")
    try:
        found = lower.lower(model, batch, config, target, options["versions"])
    except lower.Refused as error:
        return {"refused": str(error)}
    except lower.TooLarge as error:
        sizes = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        return {"too_large": {"message": str(error), **sizes}}
    phase("read")
    priced = _priced(found, config, Cluster.from_dict(options["cluster"]), options.get("model_flops"))
    return {"evidence": priced.model_dump(mode="json")}


def _priced(found: lower.Lowered, config: TrainConfig, cluster: Cluster, model_flops: float | None) -> CompilerEvidence:
    """With what the program's text tells: time under the roofline, collectives, what nobody knows.

    A text that cannot be read costs these figures, not the compiler's own.
    """
    axes = config.mesh.to_dict()
    try:
        workload = hlo.workload_of(
            found.text,
            axes=axes,
            local_batch=config.batch.local,
            precision=config.precision.value,
            remat=config.remat.mode.value,
        )
        exchanged = [one.to_dict() for one in hlo.collectives(workload, axes)]
        cycles = hlo.estimated_cycles(found.text)
    except WorkloadError as error:
        return found.evidence.model_copy(update={"notes": [f"the compiled program could not be read: {error}"]})
    read = {
        "collectives": exchanged,
        "estimated_cycles": cycles,
        "unknown_ops": [one.to_dict() for one in workload.unknown_ops],
    }
    try:
        time = compiled_time(workload, config, cluster, model_flops=model_flops)
    except (ConfigError, HardwareError) as error:
        return found.evidence.model_copy(update={**read, "notes": [f"the compiled program has no price: {error}"]})
    return found.evidence.model_copy(update={**read, "time": time.to_dict()})
