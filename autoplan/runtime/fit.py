"""Reads the TrainConfig of a script's `fit`, and converts `fit`'s arguments to another; knobs of these go here."""

from __future__ import annotations

from typing import Any

import keras

from autoplan.runtime import model_facts, model_settings
from autoplan.runtime.apply import Change, script_accumulation
from autoplan.runtime.backends import Backend
from autoplan.runtime.data import padded_rows, rebatch
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.intercept import SeenCalls
from cost_models.config import Batch, Mesh, Precision, Remat, RematMode, TrainConfig


def script_config(model: Any, facts: DataFacts, seen: SeenCalls, backend: Backend) -> TrainConfig:
    """Return the script's own configuration, read from the live model.

    ConfigError if its batch does not divide over its mesh.
    """
    mesh = _mesh()
    return TrainConfig(
        batch=Batch.from_global(facts.batch, data=mesh.data, accumulation=script_accumulation(model.optimizer)),
        backend=backend.name,
        precision=_precision(model, seen),
        mesh=mesh,
        remat=Remat(_remat_mode(seen)),
        attention=model_facts.attention_of(model),
        **model_settings.own_values(model),
    )


def arguments_under(model: Any, arguments: FitArguments, facts: DataFacts, change: Change) -> FitArguments:
    """Return the arguments of `fit` under the wanted batch; unchanged arguments if it is the script's own batch.

    If rows are padded, the model's metrics leave them out from now on, until `padded_rows.restore`.
    """
    script, wanted = change.script.batch, change.wanted.batch
    can_pad = padding_is_exact(model, arguments, facts, change)
    if can_pad and script != wanted:
        padded_rows.leave_out(model)
    return rebatch.rebatched(arguments, facts, script, wanted, can_pad=can_pad)


def padding_is_exact(model: Any, arguments: FitArguments, facts: DataFacts, change: Change | None = None) -> bool:
    """Return whether a row of weight zero does not change an update, as a probe found.

    The probe lets the metrics leave such rows out where they can. Without a probe: it does if the model has BatchNorm,
    unweighted metrics, losses added by layers, masks, or a custom micro-step.
    """
    if change is not None and change.padding in ("same", "differs"):
        counted = model_facts.has_unweighted_metrics(model)
        return change.padding == "same" and (not counted or metrics_can_leave_out(model, arguments, facts))
    return not (
        model_facts.has_batch_norm(model)
        or model_facts.has_unweighted_metrics(model)
        or model_facts.has_added_losses(model)
        or model_facts.has_masks(model)
        or model_facts.has_custom_train_step(model)
    )


def metrics_can_leave_out(model: Any, arguments: FitArguments, facts: DataFacts) -> bool:
    """Return whether metrics that ignore sample weights can leave padded rows out.

    Metrics of the user's own classes are not given weights, because they may not take them. Whether the others then
    have the values that they have without padding is for a probe to show.
    """
    own = model_facts.own_metrics(model) or model_facts.has_custom_train_step(model)
    return not own and padded_rows.have_the_only_zero_weights(arguments, facts)


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


def _precision(model: Any, seen: SeenCalls) -> Precision:
    if keras.config.floatx() != "float32":
        return Precision.OTHER
    return model_facts.precision_of(model, seen.policies)


def _remat_mode(seen: SeenCalls) -> RematMode:
    """Return the mode of the script's last scope; modes that a plan has no name for count as `full`."""
    if not seen.remat_modes or seen.remat_modes[-1] == "None":
        return RematMode.NONE
    return RematMode.ACTIVATIONS if seen.remat_modes[-1] == "activations" else RematMode.FULL
