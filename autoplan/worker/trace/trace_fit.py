"""Traces the training step of an intercepted fit to a Workload, with a real batch or a synthetic one."""

from __future__ import annotations

from typing import Any

from autoplan.errors import WorkloadError
from autoplan.runtime.data import data_facts
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.config import TrainConfig
from cost_models.workload.workload import Workload


def trace_at_batch(
    model: Any, arguments: FitArguments, facts: DataFacts, local_batch: int, config: TrainConfig
) -> Workload:
    """Trace with the shapes of a real batch, or of a synthetic batch if there are no data.

    config  the configuration that the model was built under, which names the precision and the rematerialization

    WorkloadError for data that have no batches of arrays.
    """
    batch = training_batch(model, arguments, facts, local_batch)
    return trace_train_step(
        model, batch, local_batch=local_batch, precision=config.precision.value, remat=config.remat.mode.value
    )


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


def training_batch(model: Any, arguments: FitArguments, facts: DataFacts, size: int) -> Any:
    """Return a real batch, or a batch of `size` synthetic samples if there are no data.

    WorkloadError for data that have no batches of arrays.
    """
    batch = synthetic_specs(model, size) if facts.kind == "synthetic" else data_facts.sample_batch(arguments, facts, 1)
    if batch is None:
        raise WorkloadError(
            f"the data ({type(arguments.get('x')).__name__}) have no batches of dense arrays, so the model cannot be "
            "analysed; use arrays, a tf.data.Dataset, a torch DataLoader, a keras.utils.PyDataset or a generator"
        )
    return batch
