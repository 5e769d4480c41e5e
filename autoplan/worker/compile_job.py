"""The job that asks a compiler: which batch, which target, and the answer as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoplan.errors import ConfigError, HardwareError, WorkloadError
from autoplan.plan.records import CompilerEvidence
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.worker import compilation
from autoplan.worker.trace.job import training_batch
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.compile_targets import CompilerTarget
from cost_models.hardware.description import from_mapping
from cost_models.hlo import reader
from cost_models.time.compiled_program import compiled_time


def prepare(options: Mapping[str, Any]) -> None:
    """What has to be set before a backend of JAX exists. `options` are those of `answer`."""
    compilation.prepare(CompilerTarget.from_dict(options["target"]))


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
        found = compilation.lower(model, batch, config, target, options["versions"])
    except compilation.Refused as error:
        return {"refused": str(error)}
    except compilation.TooLarge as error:
        sizes = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        return {"too_large": {"message": str(error), **sizes}}
    phase("read")
    priced = _priced(found, config, from_mapping(options["cluster"]), options.get("model_flops"))
    return {"evidence": priced.model_dump(mode="json")}


def _priced(
    found: compilation.Lowered, config: TrainConfig, cluster: Cluster, model_flops: float | None
) -> CompilerEvidence:
    """With what the program's text tells: time under the roofline, collectives, what nobody knows.

    A text that cannot be read costs these figures, not the compiler's own.
    """
    axes = {"data": config.mesh.data, "model": config.mesh.model}
    try:
        workload = reader.workload_of(
            found.text,
            axes=axes,
            local_batch=config.batch.local,
            precision=config.precision.value,
            remat=config.remat.mode.value,
        )
        exchanged = [one.to_dict() for one in reader.collectives(workload, axes)]
        cycles = reader.estimated_cycles(found.text)
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
    return found.evidence.model_copy(update={**read, "time": time})
