"""Traces the training step of an intercepted fit to a Workload, with a real batch or a synthetic one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from autoplan.errors import WorkloadError
from autoplan.runtime.data import data_facts, validation_facts
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.data.validation_facts import ValidationFacts
from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import seen_as
from autoplan.worker.trace.train_step import trace_train_step
from autoplan.worker.trace.validation_step import trace_validation_step
from cost_models.config import TrainConfig
from cost_models.execution import Origin
from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.workload.workload import OtherBatch, Workload


class TraceOptions(TypedDict):
    """Options of the job, as plain values.

    platform       the TargetPlatform that Keras sees; without it, a CPU
    largest_batch  shapes of the arrays of the largest batch, where batches of the data differ
    """

    platform: NotRequired[dict[str, Any]]
    largest_batch: NotRequired[Sequence[Sequence[int]]]


def trace_programs(
    model: Any, arguments: FitArguments, facts: DataFacts, config: TrainConfig, options: TraceOptions
) -> Workload:
    """Trace the step on the usual batch, and the training's programs on other batches, as on the target's platform.

    WorkloadError for data that have no batches of arrays.
    """
    platform = TargetPlatform.from_dict(options["platform"]) if "platform" in options else HOST
    with seen_as(platform) as answers:
        workload = trace_with_fallback(model, arguments, facts, config.batch.local, config)
        if "largest_batch" in options:
            workload = with_largest_batch(workload, model, arguments, facts, options["largest_batch"], config)
        validation = validation_facts.of_fit(arguments, facts)
        workload = with_validation(workload, model, arguments, validation, config)
    return replace(workload, answers=answers.given)


def trace_at_batch(
    model: Any, arguments: FitArguments, facts: DataFacts, local_batch: int, config: TrainConfig
) -> Workload:
    """Trace with the shapes of a real batch, or of a synthetic batch if there are no data.

    config  the configuration that the model was built under, which names its precision, rematerialization and attention

    WorkloadError for data that have no batches of arrays.
    """
    batch = training_batch(model, arguments, facts, local_batch)
    return trace_train_step(model, batch, local_batch=local_batch, **vars(Origin.of(config)))


def trace_with_fallback(
    model: Any, arguments: FitArguments, facts: DataFacts, local_batch: int, config: TrainConfig
) -> Workload:
    """Trace at `local_batch`, because the step may depend on the batch.

    If an index in the step overflows at that size, trace at the data's own batch, unless the step depends on the batch.
    """
    try:
        return trace_at_batch(model, arguments, facts, local_batch, config)
    except OverflowError:
        found = trace_at_batch(model, arguments, facts, facts.batch, config)
        if found.batch_exact:
            raise
        return found


def with_largest_batch(
    workload: Workload,
    model: Any,
    arguments: FitArguments,
    facts: DataFacts,
    shapes: Sequence[Sequence[int]],
    config: TrainConfig,
) -> Workload:
    """Return a workload with the step on the largest batch, whose arrays have these shapes."""
    rows, usual = shapes[0][0], (facts.sampled or shapes)[0][0]
    largest = data_facts.with_usual_batch(facts, shapes)
    size = config.batch.local if rows == usual else rows
    step = trace_at_batch(model, arguments, largest, size, config)
    exact = workload.batch_exact or step.batch_exact
    return replace(workload, batch_exact=exact, largest=OtherBatch(step, rows, usual))


def with_validation(
    workload: Workload, model: Any, arguments: FitArguments, validation: ValidationFacts | None, config: TrainConfig
) -> Workload:
    """Return a workload with the validation step, where the script sets how many rows are validated at once.

    A step that cannot be traced, such as one of another backend's operations, is left out.
    """
    if validation is None or not validation.fixed:
        return workload
    batch = validation_facts.sample(arguments, validation)
    if batch is None:
        return workload
    try:
        step = trace_validation_step(model, batch, local_batch=validation.rows, **vars(Origin.of(config)))
    except Exception:  # noqa: BLE001 -- a script's own test_step may do anything
        return workload
    return replace(workload, validation=OtherBatch(step, validation.rows))


def training_batch(model: Any, arguments: FitArguments, facts: DataFacts, size: int) -> Any:
    """Return a real batch, or a batch of `size` synthetic samples if there are no data.

    WorkloadError for data that have no batches of arrays.
    """
    if facts.kind == "synthetic":
        return synthetic_specs(model, size, facts.input_shapes)
    batch = data_facts.sample_batch(arguments, facts, 1)
    if batch is None:
        raise WorkloadError(
            f"the data ({type(arguments.get('x')).__name__}) have no batches of dense arrays, so the model cannot be "
            "analysed; use arrays, a tf.data.Dataset, a torch DataLoader, a keras.utils.PyDataset or a generator"
        )
    return batch
