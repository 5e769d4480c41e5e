"""A few updates with a seed -> the loss of each: the ground on which two configurations are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from autoplan.runtime import callbacks, model_facts
from autoplan.runtime.apply import Change
from autoplan.runtime.data import sample
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.fit import ensure_built
from autoplan.runtime.intercept import FitCall
from autoplan.runtime.optimizers import accumulation_of
from autoplan.worker.measure import timed_arguments
from autoplan.worker.seeds import BASE_SEED, seed_fit


def numerics(call: FitCall, facts: DataFacts, change: Change | None, options: dict[str, Any]) -> dict[str, Any]:
    """{"losses": one an update, "deterministic_model": bool, "seed"}.

    options: updates, seed, weights_to and weights_from (files: keep the initial weights, begin with kept ones). The
    data come in order; the seed was moved before the source ran (`seeds.py`), and is set again here, since two
    configurations may have drawn differently on the way.
    """
    _share_weights(call, facts, options)
    accumulation = accumulation_of(call.model.optimizer)
    call.model.steps_per_execution = 1  # it changes no number, only how often the losses are shown
    call.model.train_function = None  # one that was made for several micro-steps would go on taking them
    recorder = LossRecorder(int(options.get("updates", 20)) * accumulation)
    seed_fit(int(options.get("seed", BASE_SEED)))
    ordered = {"shuffle": False} if facts.kind in ("arrays", "PyDataset") else {}
    if facts.kind in ("PyDataset", "generator"):
        ensure_built(call.model, call.arguments, facts, entirely=True)
    call.arguments = sample.told_of_end(call.arguments, lambda: setattr(call.model, "stop_training", True))
    _ordered_fit(call, timed_arguments(call, facts, change, **ordered), recorder)
    losses = np.asarray(recorder.losses[: len(recorder.losses) // accumulation * accumulation], dtype="float64")
    deterministic = not (model_facts.has_batch_norm(call.model) or model_facts.has_random_layers(call.model))
    return {
        "losses": [float(value) for value in losses.reshape(-1, accumulation).mean(axis=1)],
        "deterministic_model": deterministic,
        "seed": int(options.get("seed", BASE_SEED)),
    }


def _share_weights(call: FitCall, facts: DataFacts, options: dict[str, Any]) -> None:
    """Initial weights kept for another process, or taken from one: the same model code orders them alike."""
    if "weights_to" in options:
        ensure_built(call.model, call.arguments, facts)
        np.savez(options["weights_to"], *call.model.get_weights())
    if "weights_from" in options:
        ensure_built(call.model, call.arguments, facts)
        with np.load(options["weights_from"]) as kept:
            call.model.set_weights([kept[name] for name in kept.files])


def _ordered_fit(call: FitCall, arguments: dict[str, Any], recorder: LossRecorder) -> None:
    left_out = ("callbacks", "epochs", "initial_epoch", "validation_freq", "verbose")
    arguments = {name: value for name, value in arguments.items() if name not in left_out}
    kept = callbacks.kept_in_trials(call.arguments)
    call.proceed(**arguments, epochs=2**31, validation_freq=2**31, verbose=0, callbacks=[*kept, recorder])


class LossRecorder(keras.callbacks.Callback):
    """Records each micro-step's own loss and ends the fit after `micro_steps` of them.

    Keras shows a running mean; its metrics are reset after every micro-step so that the mean is over one.
    """

    def __init__(self, micro_steps: int) -> None:
        super().__init__()
        self._wanted = micro_steps
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(np.asarray(_loss_in(logs or {}))))
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self.model.reset_metrics()
        if len(self.losses) >= self._wanted:
            self.model.stop_training = True


def _loss_in(logs: Mapping[str, Any]) -> Any:
    """The loss; where a micro-step of the script's own tells none under that name, another loss, else what it tells."""
    losses = [value for name, value in logs.items() if "loss" in name]
    return logs["loss"] if "loss" in logs else next(iter(losses or logs.values()), float("nan"))
