"""Implements `autoplan.scope`, `autoplan.compile` and `autoplan.fit`: training under a plan from Python."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import keras

from autoplan.errors import PlanError
from autoplan.machine import process_settings
from autoplan.plan import file
from autoplan.plan.records import Plan
from autoplan.runtime import backends, callbacks, model_facts
from autoplan.runtime.apply import Change, ProcessSettings, apply_to_model, set_attention
from autoplan.runtime.data import data_facts, lookahead, padded_rows
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.fit import arguments_under
from autoplan.runtime.live_models.build import ensure_built
from cost_models.config import AttentionMode, Precision, RematMode, TrainConfig


@contextmanager
def scope(plan: Plan) -> Iterator[None]:
    """Apply the plan's dtype policy, attention, remat scope and distribution to a model that is built in this context.

    ConfigError if the plan's mesh needs more devices than the machine has; PlanError under another backend.
    """
    change = change_to(plan)
    policy, distribution = keras.config.dtype_policy(), keras.distribution.distribution()
    wanted, attention = change.wanted, model_facts.attention_setting()
    keras.config.set_dtype_policy(policy if wanted.precision is Precision.OTHER else wanted.precision.value)
    keras.distribution.set_distribution(_settings(plan, change).distribution() or distribution)
    remat = nullcontext() if wanted.remat.mode is RematMode.NONE else keras.RematScope(mode=wanted.remat.mode.value)
    if wanted.attention is AttentionMode.UNFUSED or change.differs("attention"):
        set_attention(wanted.attention)
    try:
        with remat:
            yield
    finally:
        set_attention(attention)
        keras.config.set_dtype_policy(policy)
        keras.distribution.set_distribution(distribution)


def compile(plan: Plan, model: Any, **arguments: Any) -> Any:  # noqa: A001 -- the name users know from Keras
    """Compile a model that was built in `scope(plan)`, and apply the plan's compile settings. Returns the model.

    arguments  arguments of `model.compile`; none for a model that is already compiled

    PlanError if the model was built outside the scope and the plan changes settings that must be set before building.
    Warns if verification found that the plan trains differently from the baseline.
    """
    change = change_to(plan)
    if plan.trains_differently:
        warnings.warn(plan.trains_differently, stacklevel=2)
    if arguments:
        model.compile(**arguments)
    if not model.compiled:
        raise PlanError("the model is not compiled; pass optimizer=... and loss=..., or compile it first")
    _check_built_in_scope(model, change.wanted)
    apply_to_model(model, change)
    return model


def fit(plan: Plan, model: Any, data: Any = None, /, *more: Any, **arguments: Any) -> Any:
    """Call `model.fit` with the plan's batch size and, on a mesh, its distribution. Returns the History.

    data       x of `fit`, or a tuple (x, y[, sample_weight]); further arguments are those of `fit`.
               A batch_size given here must be the one that the plan was tuned from.

    PlanError if the model is not the plan's, or the data cannot be re-batched as the plan needs it.
    """
    change = change_to(plan)
    bound = lookahead.buffer_first_batch(_bound(data, more, cast("FitArguments", arguments)))
    ensure_built(model, bound, _facts(bound, change))
    check_structure(plan, model)
    _check_batch(bound, change)
    compile(plan, model)
    if "batch_size" not in bound and not hasattr(bound.get("x"), "element_spec"):
        bound["batch_size"] = change.script.batch.global_size
    distribution = _settings(plan, change).distribution()
    facts = _facts(bound, change)
    adapted = callbacks.adapted(bound.get("callbacks"), change.script, change.wanted, micro_steps=facts.micro_steps)
    with adapted, distribution.scope() if distribution is not None else nullcontext():
        try:
            return model.fit(**arguments_under(model, bound, facts, change))
        finally:
            padded_rows.restore(model)


def _facts(bound: FitArguments, change: Change) -> data_facts.DataFacts:
    """Describe the data without reading a tf.data pipeline, because an iteration would advance its shuffle."""
    return data_facts.describe(bound, batch=change.script.batch.global_size)


def _check_batch(bound: FitArguments, change: Change) -> None:
    tuned = change.script.batch.global_size
    if bound.get("batch_size") not in (None, tuned):
        raise PlanError(
            f"batch_size is {bound['batch_size']}, but the plan was tuned from {tuned}; leave it out, or tune with "
            "your batch size"
        )
    if not change.differs("batch"):
        return
    facts, kind = _facts(bound, change), type(bound.get("x")).__name__
    if not facts.rebatchable:
        why = f" ({facts.why_fixed})" if facts.why_fixed else ""
        raise PlanError(
            f"the plan changes the batch, but data of type {kind} cannot be re-batched{why}; pass arrays, a "
            "tf.data.Dataset, a torch DataLoader, a keras.utils.PyDataset or a generator of equal batches"
        )
    if facts.kind != "arrays" and facts.batch != tuned:
        raise PlanError(
            f"the data ({kind}) come in batches of {facts.batch}, but the plan was tuned from {tuned}; pass batches of "
            f"{tuned}, or tune again with your data"
        )


def _bound(given: Any, more: tuple[Any, ...], arguments: FitArguments) -> FitArguments:
    names = ("x", "y", "sample_weight")
    values = given if isinstance(given, tuple) else (given, *more)
    positional = {name: value for name, value in zip(names, values, strict=False) if value is not None}
    return cast("FitArguments", {**positional, **arguments})


def change_to(plan: Plan) -> Change:
    """Return the change from the plan's baseline to its configuration. PlanError if Keras runs on another backend."""
    file.refuse_what_cannot_run(plan)
    wanted = plan.config
    if wanted.backend != keras.backend.backend():
        raise PlanError(
            f"the plan is for the {wanted.backend} backend, but Keras runs on {keras.backend.backend()}; "
            f"set KERAS_BACKEND={wanted.backend} before the first import of Keras"
        )
    # This has less effect once a backend has started its threads; `autoplan train` does it earlier.
    for message in process_settings.apply(wanted):
        warnings.warn(f"{message}; the rest of the plan is applied", stacklevel=2)
    return Change(plan.baseline.config, wanted, plan.source.fit.padding)


def _settings(plan: Plan, change: Change) -> ProcessSettings:
    backend = backends.get(change.wanted.backend)
    if plan.hardware.simulated:
        backend.configure_devices(plan.hardware.devices)
    if change.wanted.mesh.devices > 1:
        backend.replicate_uneven_batches()
    return ProcessSettings(change, backend)


def check_structure(plan: Plan, model: Any) -> None:
    """Raise PlanError if a built model is not the model of the plan."""
    if plan.source.fit.structure != model_facts.structure(model):
        raise PlanError(
            "the variables of this model differ in shape from those of the plan's model; "
            "tune this model, or load its own plan"
        )


def _check_built_in_scope(model: Any, wanted: TrainConfig) -> None:
    """Raise PlanError if the built model lacks a setting of the plan that must be set before building."""
    layers = [layer for layer in model_facts.layers_of(model) if layer.weights and not layer._layers]
    policies = Counter(layer.dtype_policy.name for layer in layers)
    missing = []
    if policies and wanted.precision is not Precision.OTHER and wanted.precision.value not in policies:
        missing.append(f"precision {wanted.precision.value} (its layers have {policies.most_common(1)[0][0]})")
    modes = {getattr(getattr(layer, "_remat_mode", None), "mode", None) for layer in layers}
    if wanted.remat.mode is not RematMode.NONE and wanted.remat.mode.value not in modes:
        missing.append(f"remat {wanted.remat.mode.value}")
    if wanted.attention is AttentionMode.UNFUSED and model_facts.attention_of(model) is AttentionMode.AUTO:
        missing.append(f"attention {wanted.attention.value}")
    if wanted.mesh.devices > 1 and all(getattr(variable, "_layout", None) is None for variable in model.variables):
        missing.append(f"mesh data={wanted.mesh.data}")
    if missing:
        raise PlanError(
            f"the model was built outside the plan's scope, so it lacks {', '.join(missing)}; "
            "build it inside `with autoplan.scope(plan):`"
        )
