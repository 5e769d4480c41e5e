"""A fit that a script is about to start: its own configuration, and its arguments under another one."""

from __future__ import annotations

from typing import Any

import keras

from autoplan.runtime import model_facts
from autoplan.runtime.apply import Change, script_accumulation
from autoplan.runtime.backends import Backend
from autoplan.runtime.data import data_facts, rebatch
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.intercept import Seen
from cost_models.config import Batch, Mesh, Precision, Remat, RematMode, TrainConfig


def script_config(model: Any, facts: DataFacts, seen: Seen, backend: Backend) -> TrainConfig:
    """The script's own configuration, read off the live model.

    ConfigError when its batch does not divide over its mesh.
    """
    mesh = _mesh()
    return TrainConfig(
        batch=Batch.from_global(facts.batch, data=mesh.data, accumulation=script_accumulation(model.optimizer)),
        backend=backend.name,
        precision=_precision(model, seen),
        mesh=mesh,
        remat=Remat(_remat_mode(seen)),
        steps_per_execution=model.steps_per_execution,
        jit_compile=bool(model.jit_compile) and not model.run_eagerly,
    )


def fit_arguments(model: Any, arguments: dict[str, Any], facts: DataFacts, change: Change) -> dict[str, Any]:
    """The script's arguments of `fit` under the wanted batch; the same where the batch is the script's own."""
    weights_only = looks_at_weights_only(model)
    return rebatch.rebatch(arguments, facts, change.script.batch, change.wanted.batch, weights_only=weights_only)


def ensure_built(model: Any, arguments: dict[str, Any], facts: DataFacts, *, entirely: bool = False) -> None:
    """Build a subclassed model, as `fit` would, so that its variables can be seen.

    entirely  also what `compile` brought, so that `fit` reads no batch to build it: of what it reads for that from a
              generator or from loading threads it gives back a part only (Keras 3.15)

    Left alone where data cannot be looked at, and where only its own micro-step can build it, such as a `train_step`
    of a model without `call`.
    """
    if not entirely and all(layer.built for layer in model._flatten_layers()):
        return
    batch = data_facts.shapes_of_a_batch(arguments, facts)
    if batch is None or type(model).call is keras.Model.call:
        return
    try:
        model._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError):
        if keras.backend.backend() != "tensorflow":
            raise  # `fit` builds in the same way there; on TensorFlow it builds while it traces the first micro-step


def looks_at_weights_only(model: Any) -> bool:
    """Whether a row of weight zero leaves no trace in an update.

    No BatchNorm, unweighted metric, loss that a layer adds, mask, or custom micro-step.
    """
    return not (
        model_facts.has_batch_norm(model)
        or model_facts.has_unweighted_metrics(model)
        or model_facts.has_added_losses(model)
        or model_facts.has_masks(model)
        or model_facts.has_custom_train_step(model)
    )


def _mesh() -> Mesh:
    distribution = keras.distribution.distribution()
    if distribution is None:
        return Mesh()
    sizes = dict(zip(distribution.device_mesh.axis_names, distribution.device_mesh.shape, strict=True))
    data = sizes.pop(distribution.batch_dim_name, 1)
    model = 1
    for size in sizes.values():
        model *= size
    return Mesh(data=data, model=model)


def _precision(model: Any, seen: Seen) -> Precision:
    if keras.config.floatx() != "float32":
        return Precision.OTHER
    return model_facts.precision_of(model, seen.policies)


def _remat_mode(seen: Seen) -> RematMode:
    """The script's own scope; its finer modes are kept as they are and counted as `full`."""
    if not seen.remat_modes or seen.remat_modes[-1] == "None":
        return RematMode.NONE
    return RematMode.ACTIVATIONS if seen.remat_modes[-1] == "activations" else RematMode.FULL
