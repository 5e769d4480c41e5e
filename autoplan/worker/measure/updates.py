"""Runs a few updates under a fixed seed and records losses and changes of variables, to compare two configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autoplan.jobs.messages import ChangeComparison, NumericsRun, UpdateRun
from autoplan.runtime.data import lookahead
from autoplan.runtime.data.fit_arguments import FitArguments, without
from autoplan.runtime.live_models.build import ensure_built
from autoplan.runtime.optimizers import accumulation_of, innermost
from autoplan.worker.measure import weight_changes
from autoplan.worker.measure.redraw import StartingPoint, nudge_weights
from autoplan.worker.measure.trial_fit import TrialFit
from autoplan.worker.measure.update_data import UpdateData, data_of_updates
from autoplan.worker.measure.weight_changes import Values, VariableChange
from autoplan.worker.seeds import BASE_SEED, seed_fit, shuffled


def run_updates(fit: TrialFit, *, given_weights: bool = False) -> NumericsRun:
    """Run `options["updates"]` updates with the first of `options["seeds"]`, and with the others as far as possible.

    given_weights  the source is a live model, whose draws differ in the order of the rows

    The data come in their own order. The seed was set before the source ran (`offset_random_seed`). It is set again
    here, because two configurations may have drawn a different number of random numbers on the way.
    """
    first, *others = fit.options.get("seeds") or [BASE_SEED]
    own_arguments = fit.call.arguments
    start = _prepared(fit, first, several=bool(others), given_weights=given_weights)
    runs: list[UpdateRun] = []
    compared, remainder_rows = None, 0
    for seed in [first, *others] if start is not None else [first]:
        if given_weights:
            fit.call.arguments = shuffled(own_arguments, fit.facts, seed)
        if start is not None and runs:
            start.begin(seed)
        data = data_of_updates(fit, int(fit.options.get("updates", 20)))
        run, changes = _run(fit, data, seed)
        if not runs:
            compared, remainder_rows = _kept_and_compared(fit, changes), data.remainder_rows
        runs.append(run)
    return NumericsRun(runs=runs, remainder_rows=remainder_rows, compared=compared)


def _prepared(fit: TrialFit, seed: int, *, several: bool, given_weights: bool) -> StartingPoint | None:
    """Build the model and set its initial weights. Returns its starting point if several seeds can start from it."""
    model, call = fit.model, fit.call
    seed_fit(seed)
    ensure_built(model, call.arguments, fit.facts, entirely=fit.facts.kind in ("PyDataset", "generator"))
    _share_weights(fit)
    if fit.options.get("nudged"):
        nudge_weights(model)
    model.steps_per_execution = 1  # it changes no number, only how often Keras reports the loss
    model.train_function = None  # a function that was made for several micro-steps would still run several
    call.arguments = lookahead.call_at_end(call.arguments, lambda: setattr(model, "stop_training", True))
    built = all(layer.built for layer in model._flatten_layers())
    repeatable = fit.facts.kind in ("arrays", "PyDataset") and not fit.callbacks()
    return StartingPoint.of(model, given_weights=given_weights) if several and built and repeatable else None


def _kept_and_compared(fit: TrialFit, changes: list[VariableChange]) -> ChangeComparison | None:
    """Write the changes to a file, and compare them with another job's, as the options ask."""
    kept, other = fit.options.get("changes_to"), fit.options.get("compare_with")
    if kept is not None:
        weight_changes.save(Path(kept), changes)
    return None if other is None else weight_changes.compare(changes, Path(other))


def _run(fit: TrialFit, data: UpdateData, seed: int) -> tuple[UpdateRun, list[VariableChange]]:
    """Run the updates with one seed, from the weights that the model has."""
    model, accumulation = fit.model, accumulation_of(fit.model.optimizer)
    recorder = UpdateRecorder(int(fit.options.get("updates", 20)) * accumulation)
    seed_fit(seed)
    _fit(fit, fit.arguments(data.arguments, data.facts), recorder)
    changes = [] if recorder.before is None else recorder.before.changes(model)
    losses = np.asarray(recorder.losses[: len(recorder.losses) // accumulation * accumulation], dtype="float64")
    weight_change = weight_changes.weight_norm(changes) if changes else None
    run = UpdateRun(
        seed=seed,
        losses=[float(value) for value in losses.reshape(-1, accumulation).mean(axis=1)],
        applied=_applied(recorder, model, weight_change),
        weight_change=weight_change,
        state_changes=weight_changes.state_norms(changes),
        random_draws=weight_changes.moved_seeds(changes),
    )
    return run, changes


def _applied(recorder: UpdateRecorder, model: Any, weight_change: float | None) -> int | None:
    """Return the updates that the optimizer counted; None where the weights changed without it."""
    after = updates_counted(model)
    if recorder.updates_before is None or after is None:
        return None
    applied = after - recorder.updates_before
    return None if applied == 0 and weight_change else applied


def updates_counted(model: Any) -> int | None:
    """Return the updates that the innermost optimizer has applied so far; a loss scale skips some."""
    counter = getattr(innermost(model.optimizer), "iterations", None)
    return None if counter is None else int(keras.ops.convert_to_numpy(counter))


def _share_weights(fit: TrialFit) -> None:
    """Write the initial weights to a file, or read them from one: the same model code orders its weights alike."""
    model, options = fit.model, fit.options
    if "weights_to" in options:
        np.savez(options["weights_to"], *model.get_weights())
    if "weights_from" in options:
        with np.load(options["weights_from"]) as saved:
            model.set_weights([saved[name] for name in saved.files])


def _fit(fit: TrialFit, arguments: FitArguments, recorder: UpdateRecorder) -> None:
    arguments = without(arguments, "callbacks", "epochs", "initial_epoch", "validation_freq", "verbose")
    fit.call.proceed(
        **arguments, epochs=2**31, validation_freq=2**31, verbose=0, callbacks=[*fit.callbacks(), recorder]
    )


class UpdateRecorder(keras.callbacks.Callback):
    """Records the initial values and the loss of each micro-step, and ends the fit after `micro_steps` of them.

    Keras reports a running mean. The metrics are reset after every micro-step, so that the mean is over one micro-step.
    """

    def __init__(self, micro_steps: int) -> None:
        super().__init__()
        self._wanted = micro_steps
        self.losses: list[float] = []
        self.before: Values | None = None
        self.updates_before: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.before = Values.of(self.model)  # Keras has built the model by now
        self.updates_before = updates_counted(self.model)

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
