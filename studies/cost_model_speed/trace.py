"""Trace the decoder, write the workloads to the file OUT, and print a line of figures as JSON.

SIZE=70b python -m studies.cost_model_speed.trace OUT mixed_bfloat16/none
SIZE=small python -m studies.cost_model_speed.trace OUT float32/none float32/full ...
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

import keras

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.abstract_variables import abstract_variables
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.workload.serialization import workload_to_dict
from cost_models.workload.workload import Workload
from studies.cost_model_speed import decoder

LOCAL_BATCH = 1


def traced(kind: str) -> Workload:
    precision, remat = kind.split("/")
    keras.config.set_dtype_policy(precision)
    with abstract_variables(), keras.RematScope(mode=None if remat == "none" else remat):
        model = decoder.build_model()
        batch = synthetic_specs(model, LOCAL_BATCH)
        return trace_train_step(model, batch, local_batch=LOCAL_BATCH, precision=precision, remat=remat)


def main(out: Path, *kinds: str) -> None:
    began = time.perf_counter()
    workloads = [traced(kind) for kind in kinds]
    finished = time.perf_counter()
    out.write_text(json.dumps([workload_to_dict(workload) for workload in workloads]))
    found = {
        "parameters": workloads[0].parameters,
        "operations": len(workloads[0].ops),
        "unknown operations": sum(op.count for op in workloads[0].unknown_ops),
        "seconds a trace": (finished - began) / len(workloads),
        "CPU seconds": time.process_time(),
        "peak bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
