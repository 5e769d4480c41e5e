"""A fit that is about to start -> Observation: what it is, before a single micro-step of it has run."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import keras

from autoplan._version import __version__
from autoplan.jobs.messages import Observation
from autoplan.runtime import callbacks, model_facts, optimizers
from autoplan.runtime.backends import Backend
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.fit import ensure_built, script_config
from autoplan.runtime.intercept import FitCall, Seen


def observe(call: FitCall, facts: DataFacts, seen: Seen, backend: Backend) -> Observation:
    """Everything that choosing a configuration needs to know of this fit."""
    model, arguments = call.model, call.arguments
    ensure_built(model, arguments, facts)
    devices, kind, memory_bytes = backend.devices()
    return Observation(
        config=script_config(model, facts, seen, backend),
        structure=model_facts.structure(model),
        parameters=model_facts.parameters(model),
        samples=facts.samples,
        epochs=arguments.get("epochs", 1) - arguments.get("initial_epoch", 0),
        steps_per_epoch=facts.micro_steps,
        explicit_steps_per_epoch=facts.explicit_steps,
        data=facts.kind,
        samples_exact=facts.exact,
        rebatchable=facts.rebatchable and not model_facts.own_optimizers(model) and not model_facts.sums_loss(model),
        batch_norm=model_facts.has_batch_norm(model),
        random_layers=model_facts.has_random_layers(model),
        recurrent=model_facts.has_recurrent_layers(model),
        unweighted_metrics=model_facts.has_unweighted_metrics(model),
        custom_train_step=model_facts.has_custom_train_step(model),
        masks=model_facts.has_masks(model),
        added_losses=model_facts.has_added_losses(model),
        unscaled_train_step=model_facts.leaves_loss_unscaled(model),
        own_optimizers=model_facts.own_optimizers(model),
        schedule=optimizers.has_schedule(model.optimizer),
        ema=model_facts.has_ema(model),
        optimizer=type(optimizers.innermost(model.optimizer)).__name__,
        writers_left_out=[
            type(one).__name__ for one in callbacks.as_list(arguments.get("callbacks")) if callbacks.writes(one)
        ],
        intercepted=list(seen.overridden),
        held=_held(model),
        layer_kinds=model_facts.layer_kinds(model),
        setup_seconds=time.monotonic() - seen.started_at,
        devices=devices,
        device_kind=kind,
        device_memory_bytes=memory_bytes,
        environment=environment(backend),
        notes=_notes(call, facts, seen),
    )


def _held(model: Any) -> dict[str, str]:
    """Knobs that the model's own code does not let be turned: Keras refuses to compile some layers."""
    kinds = sorted({type(layer).__name__ for layer in model._flatten_layers() if not layer.supports_jit})
    return {"jit_compile": f"Keras compiles no layers of kind {', '.join(kinds)}"} if kinds else {}


def environment(backend: Backend) -> dict[str, str]:
    """Versions that a plan is bound to: the keys of `autoplan.plan.records.Environment`."""
    return {
        "python": platform.python_version(),
        "keras": keras.version(),
        "backend": backend.name,
        "backend_version": backend.version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "autoplan": __version__,
    }


def _notes(call: FitCall, facts: DataFacts, seen: Seen) -> list[str]:
    notes = []
    if not facts.rebatchable:
        kind = type(call.arguments.get("x")).__name__
        why = f" ({facts.why_fixed})" if facts.why_fixed else ""
        notes.append(f"the data ({kind}) cannot be re-batched{why}, so the global batch stays as it is")
    if facts.samples is not None and facts.batch > facts.samples:
        notes.append(
            f"the global batch is {facts.batch:,} and an epoch has {facts.samples:,} samples, so a micro-step has no "
            "more; estimates are of the whole batch"
        )
    own_optimizers = model_facts.own_optimizers(call.model)
    if own_optimizers:
        notes.append(
            f"the model's train_step applies optimizers of its own ({', '.join(own_optimizers)}), which accumulation "
            "does not reach, so the batch stays as it is"
        )
    if model_facts.sums_loss(call.model):
        notes.append("the loss is a sum over the batch, which no other split of an update keeps, so the batch stays")
    if call.index > 1:
        notes.append(f"fit {call.index} of the script is tuned; each earlier one ran a single micro-step in trials")
    if seen.remat_modes and seen.remat_modes[-1] not in ("None", "full", "activations"):
        notes.append(f"the script's own RematScope({seen.remat_modes[-1]!r}) is shown as full")
    return notes + _kept_ways_of_running(call.model)


def _kept_ways_of_running(model: Any) -> list[str]:
    """What decides how fast a model trains and is no knob."""
    notes = []
    if model.run_eagerly:
        notes.append(
            "the script compiles its model with run_eagerly=True, which is for debugging: Python starts each operation "
            "of each micro-step. Leave it out; of what is tuned, only jit_compile=True switches it off"
        )
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is not None:
        notes.append(
            f"the script trains under tf.distribute's {type(strategy).__name__} with {strategy.num_replicas_in_sync} "
            "replicas, which stays as it is: batches are those of all replicas together, and the mesh is not tuned"
        )
    return notes
