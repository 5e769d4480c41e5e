"""The training step of a fit -> Workload: which batch it is traced with."""

from __future__ import annotations

from typing import Any

from autoplan.errors import WorkloadError
from autoplan.runtime import data
from autoplan.runtime.data import DataFacts
from autoplan.worker.trace.specs import synthetic_specs
from autoplan.worker.trace.step import trace_train_step
from cost_models.workload import Workload


def trace(model: Any, arguments: dict[str, Any], facts: DataFacts, local_batch: int) -> Workload:
    """Trace with the shapes of one real batch; of synthetic ones where there is no data.

    WorkloadError for data that can be looked at only by consuming it (a generator).
    """
    if facts.kind == "synthetic":
        return trace_train_step(model, synthetic_specs(model, local_batch), local_batch=local_batch)
    batch = data.sample_batch(arguments, facts, 1)
    if batch is None:
        raise WorkloadError(
            f"the data ({type(arguments.get('x')).__name__}) cannot be looked at without consuming it; "
            "give arrays, a tf.data.Dataset or a keras.utils.PyDataset to have the model analysed"
        )
    return trace_train_step(model, batch, local_batch=local_batch)
