"""Chooses the data of a few updates: the last updates of an epoch with its partial batch, where that is cheap.

Two configurations of one effective batch get the same rows in the same order, the script's own without shuffling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.runtime.data import data_facts, nested_arrays, rebatch, regroup
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments, map_data
from autoplan.runtime.fit import padding_is_exact
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.trial_fit import TrialFit
from cost_models.config import Batch


@dataclass(frozen=True)
class UpdateData:
    """Arguments of a fit that replace the script's own, facts of their data, and the rows of a partial last update."""

    arguments: FitArguments
    facts: DataFacts
    remainder_rows: int = 0


def rows_of_data(call: FitCall, rows: slice) -> FitArguments:
    """Return rows of the arrays of a fit."""

    def take(leaf: Any) -> Any:
        return nested_arrays.take_rows(leaf, rows)

    return map_data(lambda data: nested_arrays.map_leaves(take, data), call.arguments)


def data_of_updates(fit: TrialFit, updates: int) -> UpdateData:
    """Return the data of the last `updates` updates of an epoch, else of its first ones."""
    end = {"arrays": _end_of_arrays, "PyDataset": _end_of_dataset}.get(fit.facts.kind)
    if end is None:
        return UpdateData({}, fit.facts)
    found = end(fit, updates) if _ends(fit) and _whole_updates(fit) else None
    return found or UpdateData({"shuffle": False}, fit.facts)


def _ends(fit: TrialFit) -> bool:
    """Return whether the fit comes to the end of its data."""
    if fit.facts.kind == "arrays":
        return rebatch.reaches_end(fit.call.arguments, fit.facts)
    return fit.facts.batches is not None


def _whole_updates(fit: TrialFit) -> bool:
    """Return whether an epoch of the script ends with a whole update. Otherwise the next epoch completes it."""
    accumulation = 1 if fit.change is None else fit.change.script.batch.accumulation
    facts = fit.facts
    if accumulation == 1:
        return True
    partial = facts.samples is None or facts.samples % (facts.batch * accumulation) != 0
    return not partial


def _end_of_arrays(fit: TrialFit, updates: int) -> UpdateData | None:
    samples, effective = data_facts.training_samples(fit.call.arguments), fit.effective_batch
    rest = samples % effective
    if rest and not _trains_on_all(fit, rest, targets=fit.call.arguments.get("y") is not None):
        return None
    first = max(0, samples - (updates * effective if not rest else (updates - 1) * effective + rest))
    arguments: FitArguments = {
        **rows_of_data(fit.call, slice(first, samples)),
        "batch_size": fit.facts.batch,
        "steps_per_epoch": None,
        "validation_split": 0.0,
        "validation_data": None,
        "shuffle": False,
    }
    return UpdateData(arguments, data_facts.describe({**fit.call.arguments, **arguments}), rest)


def _end_of_dataset(fit: TrialFit, updates: int) -> UpdateData | None:
    facts = fit.facts
    script = fit.change.script.batch if fit.change is not None else Batch(facts.batch)
    if facts.why_fixed or script.effective != fit.effective_batch or facts.batches is None:
        return None
    rest = 0 if facts.last_rows is None or facts.last_rows == facts.batch else facts.last_rows
    if rest and not _trains_on_all(fit, rest, targets=True):
        return None
    end = regroup.LastBatches(fit.call.arguments["x"], min(facts.batches, updates * script.accumulation))
    described = data_facts.describe({**fit.call.arguments, "x": end})
    return UpdateData({"x": end, "shuffle": False}, described, rest)


def _trains_on_all(fit: TrialFit, rest: int, *, targets: bool) -> bool:
    """Return whether every compared configuration trains on all rows of the partial update, or some leave rows out."""
    effective = fit.effective_batch
    accumulations: Sequence[int] = fit.options.get("accumulations") or [1]
    can_pad = padding_is_exact(fit.model, fit.call.arguments, fit.facts, fit.change) and targets
    modes = [
        rebatch.remainder_mode(rest, Batch(effective // number, accumulation=number), can_pad=can_pad)
        for number in accumulations
    ]
    return "drop" not in modes
