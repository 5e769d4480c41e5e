"""Describes an intercepted fit as an `Observation`: its configuration, model, data, devices and versions."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import keras

from autoplan import formatting
from autoplan._version import __version__
from autoplan.jobs.messages import Batches, Observation, ValidationRows
from autoplan.runtime import callbacks, model_facts, optimizers
from autoplan.runtime.backends import Backend
from autoplan.runtime.data import validation_facts
from autoplan.runtime.data.batch_shapes import BatchShapes
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.fit import script_config
from autoplan.runtime.intercept import FitCall, SeenCalls
from autoplan.runtime.live_models.build import ensure_built
from autoplan.runtime.user_code import weight_constraints
from autoplan.worker import synthetic_data


def observe_fit(call: FitCall, facts: DataFacts, seen: SeenCalls, backend: Backend) -> Observation:
    """Return the facts about a fit that the choice of a configuration depends on."""
    model, arguments = call.model, call.arguments
    ensure_built(model, arguments, facts)
    devices, kind, memory_bytes = backend.devices()
    why_fixed, own_metrics = _why_fixed_batch(call, facts), model_facts.own_metrics(model)
    return Observation(
        config=script_config(model, facts, seen, backend),
        structure=model_facts.structure(model),
        losses=model_facts.losses_of(model),
        parameters=model_facts.parameters(model),
        samples=facts.samples,
        epochs=arguments.get("epochs", 1) - arguments.get("initial_epoch", 0),
        steps_per_epoch=facts.micro_steps,
        explicit_steps_per_epoch=facts.explicit_steps,
        data=facts.kind,
        samples_exact=facts.exact,
        rebatchable=not why_fixed,
        why_fixed_batch=why_fixed,
        splits_only=bool(facts.why_not_joined),
        batches=_batches(facts.shapes),
        validation=_validation(arguments, facts),
        data_bytes=_data_bytes(arguments),
        logits=model_facts.logits_shapes(model),
        batch_norm=model_facts.has_batch_norm(model),
        random_layers=model_facts.has_random_layers(model),
        recurrent=model_facts.has_recurrent_layers(model),
        unweighted_metrics=model_facts.has_unweighted_metrics(model),
        own_metrics=own_metrics,
        metric_monitors=callbacks.monitoring(arguments.get("callbacks"), own_metrics),
        custom_train_step=model_facts.has_custom_train_step(model),
        masks=model_facts.has_masks(model),
        added_losses=model_facts.has_added_losses(model),
        unscaled_train_step=model_facts.has_unscaled_loss(model),
        own_optimizers=list(optimizers.own_optimizers(model)),
        schedule=optimizers.has_schedule(model.optimizer),
        ema=model_facts.has_ema(model),
        constraint=weight_constraints.not_idempotent(model),
        optimizer=type(optimizers.innermost(model.optimizer)).__name__,
        writers_left_out=[
            type(one).__name__ for one in callbacks.as_list(arguments.get("callbacks")) if callbacks.known_writer(one)
        ],
        batch_callbacks=callbacks.batch_callbacks(arguments.get("callbacks")),
        counting_code=model_facts.counting_code(model),
        other_models=model_facts.other_models(model),
        own_policies=sorted(seen.policies),
        intercepted=list(seen.overridden),
        held=_fixed_knobs(model),
        lost_flash_attention=model_facts.lost_flash_attention(model),
        layer_kinds=model_facts.layer_kinds(model),
        setup_seconds=time.monotonic() - seen.started_at,
        devices=devices,
        device_kind=kind,
        device_memory_bytes=memory_bytes,
        environment=environment(backend),
        assumed=_assumed(call.model, facts),
        notes=_notes(call, facts, seen),
    )


def _why_fixed_batch(call: FitCall, facts: DataFacts) -> str:
    """Return why the global batch cannot be changed; "" where it can."""
    if not facts.rebatchable:
        kind = type(call.arguments.get("x")).__name__
        return f"the data ({kind}) cannot be re-batched" + (f" ({facts.why_fixed})" if facts.why_fixed else "")
    own_optimizers = optimizers.own_optimizers(call.model)
    if own_optimizers:
        return (
            f"the model's train_step applies its own optimizers ({', '.join(own_optimizers)}), to which gradient "
            "accumulation does not apply"
        )
    not_accumulating = optimizers.why_not_accumulating(call.model.optimizer)
    if not_accumulating:
        return not_accumulating
    if model_facts.sums_loss(call.model):
        return "the loss is a sum over the batch, which another split of an update would change"
    return ""


def _fixed_knobs(model: Any) -> dict[str, str]:
    """Return the knobs that the model does not allow to change, with the reason: Keras cannot compile some layers."""
    kinds = sorted({type(layer).__name__ for layer in model._flatten_layers() if not layer.supports_jit})
    return {"jit_compile": f"Keras cannot compile layers of type {', '.join(kinds)}"} if kinds else {}


def environment(backend: Backend) -> dict[str, str]:
    """Return the versions that a plan depends on: the fields of `autoplan.plan.records.Environment`."""
    return {
        "python": platform.python_version(),
        "keras": keras.version(),
        "backend": backend.name,
        "backend_version": backend.version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "autoplan": __version__,
    }


def _validation(arguments: FitArguments, facts: DataFacts) -> ValidationRows | None:
    found = validation_facts.of_fit(arguments, facts)
    if found is None:
        return None
    return ValidationRows(rows=found.rows, samples=found.samples, fixed=found.fixed, settable=found.settable)


def _data_bytes(arguments: FitArguments) -> int | None:
    """Return the bytes of the arrays that are given to fit; None if the data are no arrays."""
    given = [arguments.get(name) for name in ("x", "y", "sample_weight", "validation_data")]
    sizes = [getattr(leaf, "nbytes", None) for leaf in keras.tree.flatten(given) if leaf is not None]
    known = [int(size) for size in sizes if isinstance(size, int)]
    return sum(known) if known else None


def _batches(shapes: BatchShapes | None) -> Batches | None:
    if shapes is None:
        return None
    return Batches(
        looked=shapes.looked,
        of=shapes.batches,
        common=[list(shape) for shape in shapes.common],
        largest=[list(shape) for shape in shapes.largest],
        mean_rows=shapes.samples / shapes.looked,
        differ_in_rows=shapes.differ_in_rows,
        differ_in_shape=shapes.differ_in_shape,
    )


def _notes(call: FitCall, facts: DataFacts, seen: SeenCalls) -> list[str]:
    notes = []
    why_fixed = _why_fixed_batch(call, facts)
    if why_fixed:
        notes.append(f"{why_fixed}, so the global batch is not tuned")
    if facts.why_not_joined:
        notes.append(f"batches of the data are split, but not joined, because {facts.why_not_joined}")
    if facts.samples is not None and facts.batch > facts.samples:
        notes.append(
            f"the global batch is {facts.batch:,}, but an epoch has only {facts.samples:,} samples; estimates assume "
            "full batches"
        )
    if call.index > 1:
        notes.append(f"fit {call.index} of the script is tuned; trials run one micro-step of each earlier fit")
    if seen.remat_modes and seen.remat_modes[-1] not in ("None", "full", "activations"):
        notes.append(f"the script's own RematScope({seen.remat_modes[-1]!r}) is reported as full")
    return notes + _execution_notes(call.model)


def _assumed(model: Any, facts: DataFacts) -> list[str]:
    """Return notes on which batches the figures are of, where batches differ or may differ in shape."""
    if facts.kind == "synthetic":
        return synthetic_data.assumptions(model, facts.input_shapes)
    shapes, notes = facts.shapes, []
    may_differ = bool(facts.why_not_joined) or model_facts.has_free_dimensions(model)
    if shapes is None:
        unknown = may_differ and facts.kind not in ("arrays", "synthetic")
        text = "an input has a free dimension: the figures are of the first batch; no other batch was looked at"
        return [text] if unknown else []
    if shapes.differ_in_shape or shapes.differ_in_rows:
        more = "" if shapes.complete else "; a larger batch may follow"
        usual, largest = shapes.shown(shapes.common), shapes.shown(shapes.largest)
        what = [word for word, differ in (("rows", shapes.differ_in_rows), ("shape", shapes.differ_in_shape)) if differ]
        notes.append(
            f"batches differ in {formatting.listed(what)}: memory is that of the largest, {largest}, and estimated "
            f"times are of the most frequent, {usual} ({shapes.progress}{more})"
        )
    elif not shapes.complete and may_differ:
        notes.append(
            f"an input has a free dimension: the figures are of batches of {shapes.shown(shapes.common)}; "
            f"{shapes.progress}"
        )
    return notes


def _execution_notes(model: Any) -> list[str]:
    """Return notes about settings that affect the speed of the training and are not knobs."""
    notes = []
    if model.run_eagerly:
        notes.append(
            "the script compiles its model with run_eagerly=True, which is for debugging: Python starts each operation "
            "of each micro-step. Remove it; of the knobs, only jit_compile=True switches it off"
        )
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is not None:
        notes.append(
            f"the script trains under tf.distribute's {type(strategy).__name__} with {strategy.num_replicas_in_sync} "
            "replicas, which is not changed: batch sizes are over all replicas, and the mesh is not tuned"
        )
    return notes
