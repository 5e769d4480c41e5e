"""Runs a `compile` job: compiles the step of a fit, prices the compiled program, and returns `CompilerEvidence`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

from autoplan.errors import ConfigError, HardwareError, WorkloadError
from autoplan.plan.records import CompilerEvidence
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.worker import aot_compile
from autoplan.worker.trace.trace_fit import training_batch
from cost_models.config import TrainConfig
from cost_models.execution import Origin
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.compile_targets import CompilerTarget
from cost_models.hardware.description import from_mapping
from cost_models.hardware.platform import TargetPlatform
from cost_models.hlo import reader
from cost_models.time.compiled_program import compiled_time


class CompileOptions(TypedDict):
    """Options of the job, as plain values.

    target       the CompilerTarget
    cluster      the Cluster that the program is traced for, and the compiled program is priced for
    lowered      the TrainConfig that is compiled
    versions     versions of the compiler packages
    model_flops  FLOPs of a micro-step on one device; None if they are not known
    """

    target: dict[str, object]
    cluster: dict[str, object]
    lowered: dict[str, object]
    versions: dict[str, str]
    model_flops: NotRequired[float | None]


def configure_process(options: CompileOptions) -> None:
    """Configure the process before JAX creates a backend."""
    aot_compile.configure_process(CompilerTarget.from_dict(options["target"]))


def compile_fit(
    model: Any,
    arguments: FitArguments,
    facts: DataFacts,
    options: CompileOptions,
    phase: Callable[[str], None],
) -> Mapping[str, object]:
    """Compile the training step of a fit.

    Returns {"evidence": CompilerEvidence}; {"too_large": message and bytes} if the program does not fit the target; or
    {"refused": why} if the compiler rejects it.

    WorkloadError for data that have no batches of arrays; other errors as in `aot_compile.compile_train_step`.
    """
    config = TrainConfig.from_dict(options["lowered"])
    target = CompilerTarget.from_dict(options["target"])
    cluster = from_mapping(options["cluster"])
    batch = training_batch(model, arguments, facts, config.batch.global_size)
    phase("compile")
    try:
        platform = TargetPlatform.of(cluster.chip)
        found = aot_compile.compile_train_step(model, batch, config, target, platform, options["versions"])
    except aot_compile.CompilerRejection as error:
        return {"refused": str(error)}
    except aot_compile.ProgramTooLarge as error:
        sizes = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        return {"too_large": {"message": str(error), **sizes}}
    phase("read")
    priced = _with_program_costs(found, config, cluster, options.get("model_flops"))
    return {"evidence": priced.model_dump(mode="json")}


def _with_program_costs(
    found: aot_compile.CompiledStep, config: TrainConfig, cluster: Cluster, model_flops: float | None
) -> CompilerEvidence:
    """Add evidence from the program's text: the roofline time, collectives, and unknown operations.

    If the text cannot be read, the compiler's own evidence is returned with a note.
    """
    axes = {"data": config.mesh.data, "model": config.mesh.model}
    try:
        workload = reader.workload_of(
            found.text,
            axes=axes,
            local_batch=config.batch.local,
            **vars(Origin.of(config)),
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
        return found.evidence.model_copy(
            update={**read, "notes": [f"the time of the compiled program cannot be estimated: {error}"]}
        )
    return found.evidence.model_copy(update={**read, "time": time})
