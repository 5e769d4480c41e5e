"""Runs the events of an epoch that are no full updates, once each: partial last update, validation, checkpoint.

A verification runs each of them once, because a configuration may train well and run out of memory in one of these.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

from autoplan.runtime import callbacks
from autoplan.runtime.apply import Change
from autoplan.runtime.data import data_facts, regroup, validation_facts
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.intercept import FitCall
from autoplan.worker.channel import disk_is_full
from autoplan.worker.measure.trial_fit import NOTHING_BUT_MICRO_STEPS, TrialFit
from autoplan.worker.measure.update_data import rows_of_data
from cost_models.config import Batch


def run_epoch_events(fit: TrialFit) -> list[str]:
    """Run the events that the job's options ask for. Returns the names of those that ran."""
    ran = []
    if fit.options.get("remainder"):
        ran += _run_remainder(fit)
    if fit.options.get("validation"):
        ran += _run_validation(fit)
    if fit.options.get("checkpoint"):
        fit.on_phase("checkpoint")
        try:
            ran += _save_checkpoint(fit.call)
        except OSError as error:
            if not disk_is_full(error):  # a full disk does not depend on the configuration
                raise
    return ran


def validation_batch(arguments: FitArguments, facts: DataFacts, change: Change | None) -> int:
    """Return the batch size that `fit` validates arrays with: the script's own number, else that of the training.

    If the script gives validation_steps, they are steps of the script's own batch, whatever the plan's batch is.
    """
    own: int | None = arguments.get("validation_batch_size")
    if own is not None or change is None or arguments.get("validation_steps"):
        return own or facts.batch
    return change.wanted.batch.global_size


def _run_remainder(fit: TrialFit) -> list[str]:
    end = {"arrays": _end_of_arrays, "PyDataset": _end_of_dataset}.get(fit.facts.kind)
    if end is None or fit.facts.batches is None:
        return []
    fit.on_phase("remainder")
    fit.call.proceed(**end(fit))
    return ["remainder"]


def _end_of_arrays(fit: TrialFit) -> FitArguments:
    """Return arguments of a fit on the last whole effective batch and the rows after it."""
    samples, batch = data_facts.training_samples(fit.call.arguments), fit.effective_batch
    last = rows_of_data(fit.call, slice(samples - min(samples, samples % batch + batch), samples))
    return fit.arguments({**last, **NOTHING_BUT_MICRO_STEPS, "batch_size": fit.facts.batch})


def _end_of_dataset(fit: TrialFit) -> FitArguments:
    """Return arguments of a fit on the last batches of a PyDataset: a whole update and what follows it."""
    facts = fit.facts
    script = fit.change.script.batch if fit.change is not None else Batch(facts.batch)
    per_update, batches = max(script.accumulation, math.ceil(fit.effective_batch / facts.batch)), facts.batches or 1
    end = regroup.LastBatches(fit.call.arguments["x"], min(batches, batches % per_update + per_update))
    return fit.arguments({"x": end, **NOTHING_BUT_MICRO_STEPS}, replace(facts, micro_steps=end.num_batches))


def run_one_training_micro_step(fit: TrialFit) -> None:
    """Run one micro-step as the fit does, so that the optimizer's state and the program are there."""
    arguments: FitArguments = {"steps_per_epoch": 1}
    if fit.facts.kind == "arrays":  # without a batch size, a single micro-step would take all rows
        arguments["batch_size"] = fit.global_batch
    fit.call.proceed(**{**fit.arguments(NOTHING_BUT_MICRO_STEPS), **arguments})


def run_validation_batch(fit: TrialFit) -> int | None:
    """Run one batch of the fit's validation. Returns its rows; None if the fit does not validate."""
    found = validation_facts.of_fit(fit.call.arguments, fit.facts)
    return None if found is None or not _evaluate(fit, steps=1) else fit.options.get("validation_rows", found.rows)


def _run_validation(fit: TrialFit) -> list[str]:
    return ["validation"] if _evaluate(fit, fit.call.arguments.get("validation_steps")) else []


def _evaluate(fit: TrialFit, steps: int | None) -> bool:
    """Evaluate the validation data in the batches of the fit, or of as many rows as the options ask for."""
    data = validation_facts.validation_arguments(fit.call.arguments)
    if data is None:
        return False
    fit.on_phase("validation")
    size = None
    if data_facts.is_arrays(data["x"]):
        size = fit.options.get("validation_rows") or validation_batch(fit.call.arguments, fit.facts, fit.change)
    elif not data_facts.is_tf_dataset(data["x"]):
        size = validation_batch(fit.call.arguments, fit.facts, fit.change)
    fit.model.evaluate(**data, batch_size=size, steps=steps, verbose=0)
    return True


def _save_checkpoint(call: FitCall) -> list[str]:
    """Save the model. Returns ["checkpoint"], ["weights"] if only the weights can be saved, or [].

    Keras cannot save a model without `get_config` whole. It cannot save a trainer around other models (a `train_step`
    and no `call`) at all. Both hold with and without a plan, so they only matter if the script itself saves that way.
    """
    asked = {callbacks.saved_part(one) for one in callbacks.as_list(call.arguments.get("callbacks"))}
    ways = (("checkpoint", call.model.save, "model.keras"), ("weights", call.model.save_weights, "model.weights.h5"))
    with tempfile.TemporaryDirectory(prefix="autoplan-") as folder:
        for made, save, name in ways:
            try:
                save(Path(folder) / name)
            except (NotImplementedError, TypeError, ValueError):
                if made in asked:
                    raise
            else:
                return [made]
    return []
