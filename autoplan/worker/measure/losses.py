"""Records the loss of a few updates under a fixed seed, so that two configurations can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import keras
import numpy as np

from autoplan.runtime import callbacks, model_facts
from autoplan.runtime.data import lookahead
from autoplan.runtime.data.fit_arguments import FitArguments, without
from autoplan.runtime.fit import ensure_built
from autoplan.runtime.optimizers import accumulation_of
from autoplan.worker.measure.trial_fit import TrialFit
from autoplan.worker.seeds import BASE_SEED, seed_fit


class UpdateLosses(TypedDict):
    """Losses of a run, one for each update."""

    losses: list[float]
    deterministic_model: bool
    seed: int


def record_update_losses(fit: TrialFit) -> UpdateLosses:
    """Run `options["updates"]` updates on the data in their own order, and return the loss of each.

    The seed was set before the source ran (`offset_random_seed`). It is set again here, because two configurations may
    have drawn a different number of random numbers on the way.
    """
    call, facts, seed = fit.call, fit.facts, int(fit.options.get("seed", BASE_SEED))
    _share_weights(fit)
    accumulation = accumulation_of(call.model.optimizer)
    call.model.steps_per_execution = 1  # it changes no number, only how often Keras reports the loss
    call.model.train_function = None  # a function that was made for several micro-steps would still run several
    recorder = LossRecorder(int(fit.options.get("updates", 20)) * accumulation)
    seed_fit(seed)
    ordered: FitArguments = {"shuffle": False} if facts.kind in ("arrays", "PyDataset") else {}
    if facts.kind in ("PyDataset", "generator"):
        ensure_built(call.model, call.arguments, facts, entirely=True)
    call.arguments = lookahead.call_at_end(call.arguments, lambda: setattr(call.model, "stop_training", True))
    _run_fit(fit, fit.arguments(ordered), recorder)
    losses = np.asarray(recorder.losses[: len(recorder.losses) // accumulation * accumulation], dtype="float64")
    deterministic = not (model_facts.has_batch_norm(call.model) or model_facts.has_random_layers(call.model))
    return {
        "losses": [float(value) for value in losses.reshape(-1, accumulation).mean(axis=1)],
        "deterministic_model": deterministic,
        "seed": seed,
    }


def _share_weights(fit: TrialFit) -> None:
    """Write the initial weights to a file, or read them from one: the same model code orders its weights alike."""
    call, options = fit.call, fit.options
    if "weights_to" in options:
        ensure_built(call.model, call.arguments, fit.facts)
        np.savez(options["weights_to"], *call.model.get_weights())
    if "weights_from" in options:
        ensure_built(call.model, call.arguments, fit.facts)
        with np.load(options["weights_from"]) as saved:
            call.model.set_weights([saved[name] for name in saved.files])


def _run_fit(fit: TrialFit, arguments: FitArguments, recorder: LossRecorder) -> None:
    arguments = without(arguments, "callbacks", "epochs", "initial_epoch", "validation_freq", "verbose")
    selected = callbacks.trial_callbacks(fit.call.arguments)
    fit.call.proceed(**arguments, epochs=2**31, validation_freq=2**31, verbose=0, callbacks=[*selected, recorder])


class LossRecorder(keras.callbacks.Callback):
    """Records the loss of each micro-step, and ends the fit after `micro_steps` of them.

    Keras reports a running mean. The metrics are reset after every micro-step, so that the mean is over one micro-step.
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


def _loss_in(logs: Mapping[str, object]) -> Any:
    """Return the loss; without a log of that name another loss, and without any loss the first log."""
    losses = [value for name, value in logs.items() if "loss" in name]
    return logs["loss"] if "loss" in logs else next(iter(losses or logs.values()), float("nan"))
