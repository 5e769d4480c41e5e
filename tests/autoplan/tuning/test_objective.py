from __future__ import annotations

import pytest

from autoplan.plan.records import Failure, FailureKind, Measurement, TrialRecord
from autoplan.tuning.objective import PlannedFit, compile_seconds_of, settled_compile_seconds
from tests.builders import plans
from tests.builders.observations import config, observation


def measured(micro_step_seconds=0.01, **changes):
    return Measurement.model_validate(plans.measurement(micro_step_seconds) | changes)


def compiled_in(*seconds):
    return [
        TrialRecord(number=n, config=config(), outcome="measured", measurement=measured(compile_seconds=s))
        for n, s in enumerate(seconds)
    ]


def test_the_objective_is_compilation_and_every_micro_step_over_all_samples():
    compile_seconds, micro_step_seconds, samples, epochs, batch = 5.0, 0.1, 1000, 3, 64
    planned = PlannedFit.of(observation(config(batch), samples=samples, epochs=epochs))
    micro_steps = epochs * 16  # 15.6 an epoch: the partial one counts whole
    expected = compile_seconds + micro_steps * micro_step_seconds
    outcome = measured(micro_step_seconds)
    assert planned.micro_steps(batch) == micro_steps
    assert planned.seconds(config(batch), outcome, compile_seconds) == pytest.approx(expected)
    per_sample = planned.seconds_per_sample(config(batch), outcome, compile_seconds)
    assert per_sample == pytest.approx(expected / (epochs * samples))


def test_without_a_length_only_the_micro_step_counts():
    planned = PlannedFit.of(observation(config(64), samples=None))
    assert planned.micro_steps(64) is None
    assert planned.seconds(config(32, 2), measured(0.5), 4.0) is None
    found = measured(0.5, samples_per_second=32 / 0.5)
    assert planned.seconds_per_sample(config(32, 2), found, 4.0) == pytest.approx(0.5 / 32)


def test_counted_micro_steps_give_the_length():
    planned = PlannedFit.of(observation(config(64), samples=None, steps_per_epoch=10, epochs=2))
    assert planned.samples == 640
    assert planned.micro_steps(32) == 2 * 20
    facts = {"samples": 10_000, "steps_per_epoch": 10, "explicit_steps_per_epoch": True}
    assert PlannedFit.of(observation(config(64), **facts)).samples == 640


def test_compilation_that_nobody_timed_is_the_excess_of_the_first_micro_step():
    assert compile_seconds_of(measured(0.5, compile_seconds=2.0, first_step_seconds=3.5)) == 2.0
    assert compile_seconds_of(measured(0.5, compile_seconds=None, first_step_seconds=3.5)) == pytest.approx(3.0)
    assert compile_seconds_of(measured(0.5, compile_seconds=None, first_step_seconds=0.4)) == 0.0


@pytest.mark.parametrize(("own", "settled"), [(3.0, 2.0), (1.0, 2.0), (3.1, 3.1), (0.9, 0.9), (60.0, 60.0)])
def test_compile_times_within_their_noise_are_equal(own, settled):
    assert settled_compile_seconds(measured(compile_seconds=own), compiled_in(1.5, 2.0, 2.5)) == settled


def test_a_first_trial_has_its_own_compile_time():
    failed = TrialRecord(
        number=0,
        config=config(),
        outcome="failed",
        failure=Failure(kind=FailureKind.OOM, message="too large"),
    )
    assert settled_compile_seconds(measured(compile_seconds=7.0), [failed]) == 7.0


def test_the_noise_of_compilers_does_not_choose_the_winner_of_a_short_fit():
    planned = PlannedFit.of(observation(config(64), samples=64, epochs=1))
    slow, fast = measured(0.5, compile_seconds=2.0), measured(0.1, compile_seconds=2.9)
    records = compiled_in(2.0, 2.9, 2.3)
    scores = [
        planned.seconds_per_sample(config(64), one, settled_compile_seconds(one, records)) for one in (slow, fast)
    ]
    assert scores[1] < scores[0]


def test_batches_that_differ_in_rows_are_counted():
    """Of 110 batches with 37.2 rows on average, 16 rows are the most frequent."""
    batches = {"looked": 110, "of": 110, "common": [[16, 128]], "largest": [[16, 128]], "mean_rows": 37.2}
    batches |= {"differ_in_rows": True, "differ_in_shape": True}
    facts = {"rebatchable": False, "batches": batches, "steps_per_epoch": 110}
    planned = PlannedFit.of(observation(config(16), samples=4092, epochs=3, **facts))
    assert (planned.samples, planned.micro_steps(16)) == (4092, 330)
