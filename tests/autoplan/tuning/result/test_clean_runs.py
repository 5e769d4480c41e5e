from __future__ import annotations

import pytest

from autoplan.tuning.result.clean_runs import restated_trials, trial_runs, with_clean_run, with_interval
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.process_spread import Spread
from autoplan.tuning.verification.statistics import Timed
from tests.builders.plan_decisions import OTHER, OWN, WINNER, record

BASELINE, BETTER, FAILED = record(0, OWN, 0.01), record(1, WINNER, 0.02), record(2, OTHER)
TRIED = Tried(BASELINE, BASELINE, (BASELINE, BETTER, FAILED), "all trials are done")


def runs(own, *seconds):
    return [Timed(own, record(0, own, one).measurement) for one in seconds]


def test_trials_of_configurations_that_ran_again_are_runs_of_them():
    assert trial_runs(TRIED, runs(OWN, 0.011)) == [Timed(OWN, BASELINE.measurement)]
    assert trial_runs(TRIED, [Timed(OWN, BASELINE.measurement)]) == []


def test_a_trial_has_the_median_of_its_clean_runs_and_its_own_compile_time():
    found = with_clean_run(BETTER, runs(WINNER, 0.03, 0.01, 0.02)).measurement
    assert found.micro_step_seconds == pytest.approx(0.02)
    assert found.compile_seconds == BETTER.measurement.compile_seconds
    assert with_clean_run(BETTER, runs(OWN, 0.03)) is BETTER
    assert with_clean_run(FAILED, runs(OTHER, 0.03)) is FAILED


def test_what_a_brief_run_does_not_measure_is_that_of_the_trial():
    lacking = {"peak_bytes": None, "peak_bytes_source": None, "input_bound": None}
    (brief,) = runs(WINNER, 0.03)
    brief = Timed(WINNER, brief.measurement.model_copy(update=lacking))
    found = with_clean_run(BETTER, [brief]).measurement
    assert found.micro_step_seconds == pytest.approx(0.03)
    for name in lacking:
        assert getattr(found, name) == getattr(BETTER.measurement, name) is not None


def test_intervals_hold_for_other_processes():
    spread = Spread(0.2, 6)
    wide = with_interval(BETTER, spread).measurement
    assert wide.micro_step_seconds_low < BETTER.measurement.micro_step_seconds_low
    assert wide.micro_step_seconds_high > BETTER.measurement.micro_step_seconds_high
    restated = restated_trials(TRIED, spread)
    assert restated.records[1].measurement == wide
    assert restated.records[2] is FAILED
