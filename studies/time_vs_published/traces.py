"""Workloads of the models, traced once and kept in a folder: tracing is most of this study's time."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cost_models import Workload
from cost_models.workload.serialization import workload_from_dict, workload_to_dict

_BATCH = 2  # at which transformers are traced; sizes are lines in the batch


@dataclass(frozen=True)
class Traced:
    """What a workload depends on. `size` is the image's side or the sequence's length."""

    kind: str
    size: int
    precision: str
    optimizer: str
    options: str = field(default="{}")
    batch: int = _BATCH

    @property
    def name(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]

    def with_layers(self, layers: int) -> Traced:
        """The same transformer with another number of blocks."""
        options = json.loads(self.options)
        options["arch"]["layers"] = layers
        return Traced(self.kind, self.size, self.precision, self.optimizer, json.dumps(options), self.batch)


def workload(what: Traced, folder: Path) -> Workload:
    """Return the workload, from the folder or traced now. Nothing is computed and no variable has a value."""
    place = folder / f"{what.name}.json.gz"
    if place.exists():
        return workload_from_dict(json.loads(gzip.decompress(place.read_bytes())))
    traced = trace(what)
    folder.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(json.dumps(workload_to_dict(traced)).encode(), mtime=0))
    return traced


def trace(what: Traced, build: Callable[[str, int, str, dict[str, Any]], Any] | None = None) -> Workload:
    """Trace a step as on a CPU. `build` makes the compiled model from kind, size, optimizer and options.

    None: `zoo.build`.
    """
    import keras

    from autoplan.worker.synthetic_data import synthetic_specs
    from autoplan.worker.trace.abstract_variables import abstract_variables
    from autoplan.worker.trace.train_step import trace_train_step
    from studies.time_vs_published import zoo

    options: dict[str, Any] = json.loads(what.options)
    keras.backend.clear_session()  # which forgets the policy too
    keras.config.set_dtype_policy(what.precision)
    remat = "full" if options.get("remat") else "none"
    with abstract_variables():
        model = (build or zoo.build)(what.kind, what.size, what.optimizer, options)
        specs = synthetic_specs(model, what.batch)
        return trace_train_step(model, specs, local_batch=what.batch, precision=what.precision, remat=remat)
