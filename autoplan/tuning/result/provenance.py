"""Builds the records of a plan that identify its source and its hardware."""

from __future__ import annotations

from autoplan.jobs.messages import Observation
from autoplan.plan.records import DEFAULT_FUNCTION, FitRecord, HardwareRecord, SourceRecord
from autoplan.sources.source import SourceSpec
from autoplan.tuning.request import TuneRequest
from cost_models.hardware.cluster import Cluster


def source_record(request: TuneRequest, observation: Observation) -> SourceRecord:
    """Return the source and the fit that was tuned."""
    spec = request.source
    batch = observation.config.batch
    updates = None
    if observation.steps_per_epoch is not None:
        updates = observation.steps_per_epoch * observation.epochs // batch.accumulation
    fit = FitRecord(
        index=spec.fit_index,
        structure=observation.structure,
        samples=observation.samples,
        epochs=observation.epochs,
        data=observation.data,
        updates=updates,
        padding=observation.padding,
        losses=observation.losses or None,
    )
    return SourceRecord(
        kind=spec.kind,
        path=_named(spec),
        sha256=spec.sha256,
        fit=fit,
        args=list(spec.args),
        input_shapes=spec.input_shapes or None,
    )


def _named(spec: SourceSpec) -> str:
    """Return the source as `autoplan train` reads it: a file, a file with its function, or a module."""
    if spec.kind == "script" and spec.module:
        return f"-m {spec.module}"
    if spec.kind == "builder" and spec.module:
        return f"{spec.module}:{spec.function}"
    if spec.kind == "builder" and spec.function != DEFAULT_FUNCTION:
        return f"{spec.path}:{spec.function}"
    return spec.path or spec.function


def hardware_record(cluster: Cluster, memory_limit_bytes: int | None) -> HardwareRecord:
    """Return the hardware that a plan is for."""
    return HardwareRecord(
        name=cluster.name,
        devices=cluster.devices,
        kind=cluster.chip.kind,
        capacity_bytes=cluster.chip.usable_memory_bytes,
        memory_limit_bytes=memory_limit_bytes,
        simulated=cluster.simulated,
        description=cluster.chip.name,
    )
