"""Replaces trial figures by medians of verification runs, and widens intervals by the spread between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.plan.records import TrialRecord
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.process_spread import Spread, restated
from autoplan.tuning.verification.statistics import Timed

_MEASURED_IN_TRIALS = ("compute_micro_step_seconds", "input_bound", "peak_bytes", "peak_bytes_source")


def trial_runs(tried: Tried, repeats: Sequence[Timed]) -> list[Timed]:
    """Return the trials of the configurations that ran again."""
    repeated = {run.config for run in repeats}
    seen = {id(run.measurement) for run in repeats}
    runs = [Timed(r.config, r.measurement) for r in tried.records if r.measurement is not None]
    return [run for run in runs if run.config in repeated and id(run.measurement) not in seen]


def of_clean_runs(tried: Tried, runs: Sequence[Timed]) -> Tried:
    """Return baseline and reference as verification measured them, alternating with the winner."""
    return replace(
        tried, baseline=with_clean_run(tried.baseline, runs), reference=with_clean_run(tried.reference, runs)
    )


def with_clean_run(record: TrialRecord, runs: Sequence[Timed]) -> TrialRecord:
    """Return a trial with the median of its verification runs; its compile time and what only trials measure stay."""
    if record.measurement is None:
        return record
    config = record.config
    own = sorted((run.measurement for run in runs if run.config == config), key=lambda one: one.micro_step_seconds)
    if not own:
        return record
    middle = own[(len(own) - 1) // 2]
    lacking = [name for name in _MEASURED_IN_TRIALS if getattr(middle, name) is None]
    names = ("compile_seconds", "first_step_seconds", *lacking)
    kept = {name: getattr(record.measurement, name) for name in names}
    return record.model_copy(update={"measurement": middle.model_copy(update=kept)})


def restated_trials(tried: Tried, between: Spread | None) -> Tried:
    """Return the trials with intervals that hold for other processes too."""
    records = tuple(with_interval(record, between) for record in tried.records)
    baseline, reference = with_interval(tried.baseline, between), with_interval(tried.reference, between)
    return replace(tried, baseline=baseline, reference=reference, records=records)


def with_interval(record: TrialRecord, between: Spread | None) -> TrialRecord:
    """Return a record with an interval that holds for other processes too."""
    if record.measurement is None:
        return record
    return record.model_copy(update={"measurement": restated(record.measurement, between)})
