"""The training step of a fit -> Workload: which batch it is traced with."""

from __future__ import annotations

from typing import Any

from autoplan.errors import WorkloadError
from autoplan.runtime.data import data_facts
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.config import TrainConfig
from cost_models.workload.workload import Workload


def trace(model: Any, arguments: dict[str, Any], facts: DataFacts, local_batch: int, config: TrainConfig) -> Workload:
    """Trace with the shapes of one real batch; of synthetic ones where there is no data.

    `config` names the precision and the rematerialization that the model was built with.

    WorkloadError for data of which no batch of arrays can be had.
    """
    batch = training_batch(model, arguments, facts, local_batch)
    return trace_train_step(
        model, batch, local_batch=local_batch, precision=config.precision.value, remat=config.remat.mode.value
    )


def trace_near(
    model: Any, arguments: dict[str, Any], facts: DataFacts, local_batch: int, config: TrainConfig
) -> Workload:
    """Trace at the batch that is asked about, since a step that changes with the batch is another one at every batch.

    Where indices of the step cannot count that far, at the data's own batch, if the step does not change with it.
    """
    try:
        return trace(model, arguments, facts, local_batch, config)
    except OverflowError:
        found = trace(model, arguments, facts, facts.batch, config)
        if found.batch_exact:
            raise
        return found


def training_batch(model: Any, arguments: dict[str, Any], facts: DataFacts, size: int) -> Any:
    """One real batch; of `size` synthetic samples where there is no data.

    WorkloadError for data of which no batch of arrays can be had.
    """
    batch = synthetic_specs(model, size) if facts.kind == "synthetic" else data_facts.sample_batch(arguments, facts, 1)
    if batch is None:
        raise WorkloadError(
            f"the data ({type(arguments.get('x')).__name__}) do not come in batches of arrays that can be looked at; "
            "give arrays, a tf.data.Dataset, a torch DataLoader, a keras.utils.PyDataset or a generator to have the "
            "model analysed"
        )
    return batch
