from __future__ import annotations

import pytest

from autoplan.plan.records import Failure, FailureKind, TrialRecord
from autoplan.tuning.estimates.calibration import calibrations, contenders, correction_notes, factors, reordered
from cost_models.execution import Executor
from tests.builders import estimates as made
from tests.builders import plans
from tests.builders.observations import config


def record(one, seconds, predicted, number=0):
    found = plans.measurement(seconds / one.batch.accumulation, size=one.batch.global_size)
    found["update_seconds"] = seconds
    return TrialRecord(
        number=number,
        config=one,
        predicted_update_seconds=predicted,
        outcome="measured",
        measurement=found,
        failure=None,
    )


def estimate(one, seconds):
    return made.candidate(one, update_seconds=seconds)


EAGER, COMPILED = config(64, jit_compile=False), config(64)
ON_TORCH = config(64, backend="torch", jit_compile=False)


def test_a_factor_is_the_median_of_measured_over_predicted_for_each_kind_of_execution():
    records = [record(EAGER, 3.0, 1.0), record(EAGER, 5.0, 1.0), record(EAGER, 40.0, 10.0), record(COMPILED, 1.0, 2.0)]
    assert factors(records) == {Executor("jax", False): 4.0, Executor("jax", True): 0.5}


def test_what_failed_or_was_not_estimated_teaches_nothing():
    failed = TrialRecord(
        number=0,
        config=EAGER,
        predicted_update_seconds=1.0,
        outcome="failed",
        measurement=None,
        failure=Failure(kind=FailureKind.OOM, message="too large"),
    )
    assert factors([failed, record(EAGER, 1.0, None)]) == {}


def test_trials_correct_the_order_of_what_is_left():
    small, large = config(32, jit_compile=False), config(128)
    shortlist = [EAGER, small, large]
    estimates = {EAGER: estimate(EAGER, 1.0), small: estimate(small, 0.6), large: estimate(large, 3.0)}
    assert reordered(shortlist, estimates, []) == shortlist
    slow_eager = [record(EAGER, 10.0, 1.0), record(large, 3.0, 3.0)]
    assert reordered(shortlist, estimates, slow_eager) == [EAGER, large, small]
    slow_compiled = [record(EAGER, 1.0, 1.0), record(large, 30.0, 3.0)]
    assert reordered(shortlist, estimates, slow_compiled) == [EAGER, small, large]


def test_the_first_of_every_backend_keeps_its_turn():
    more = config(32)
    shortlist = [COMPILED, ON_TORCH, more]
    estimates = {one: estimate(one, 1.0) for one in shortlist}
    records = [record(COMPILED, 1.0, 1.0), record(ON_TORCH, 100.0, 1.0)]
    assert reordered(shortlist, estimates, records) == shortlist


def test_an_execution_that_nobody_tried_is_given_the_best_known_factor():
    tried, other = config(32), config(16, jit_compile=False)
    shortlist = [COMPILED, tried, other]
    estimates = {COMPILED: estimate(COMPILED, 1.0), tried: estimate(tried, 0.5), other: estimate(other, 0.26)}
    # Seconds a sample: 1/32 x 2 for what was tried, 0.26/16 for the other, whose factor is not known.
    assert reordered(shortlist, estimates, [record(COMPILED, 2.0, 1.0)])[1] == tried
    estimates[other] = estimate(other, 0.2)
    assert reordered(shortlist, estimates, [record(COMPILED, 2.0, 1.0)])[1] == other


def test_what_a_better_prediction_clearly_beats_has_to_wait():
    """Predicted 1, 1.2 and 1.3 times the best, a sample; eager trials took three times their prediction."""
    best, near, far, eager = config(64), config(32), config(1, 64), config(16, jit_compile=False)
    estimates = {
        one: estimate(one, times * one.batch.effective)
        for one, times in ((best, 1.0), (near, 1.2), (far, 1.3), (eager, 1.1))
    }
    every = [eager, far, near, best]
    assert contenders(every, estimates, [], local_batch=64) == [eager, near, best]
    slow_eager = [record(EAGER, 3.0, 1.0), record(COMPILED, 1.0, 1.0)]
    assert contenders(every, estimates, slow_eager, local_batch=64) == [near, best]
    assert contenders([eager, far], estimates, slow_eager, local_batch=64) == [far], "its turn comes"


def test_without_estimates_micro_batches_below_the_scripts_own_come_last():
    small, own, large = config(1, 64), config(32, 2), config(64)
    assert contenders([small, own, large], {}, [], local_batch=32) == [own, large]
    assert contenders([small], {}, [], local_batch=32) == [small]


def test_one_kind_of_execution_keeps_its_order():
    shortlist = [COMPILED, config(32), config(16)]
    estimates = {one: estimate(one, 1.0 / place) for place, one in enumerate(shortlist, 1)}
    assert reordered(shortlist, estimates, [record(COMPILED, 9.0, 1.0)]) == shortlist


def parted(one, compute, traffic, overhead):
    seconds = compute + traffic + overhead
    parts = {"compute_seconds": compute, "memory_seconds": traffic, "overhead_seconds": overhead}
    return made.candidate(one, update_seconds=seconds, **parts)


def test_three_trials_tell_a_slow_host_from_slow_arithmetic():
    """Micro-steps of 16, 32 and 64 samples whose host takes four times as long as was predicted, and nothing else."""
    tried = [config(size) for size in (16, 32, 64)]
    few, many = config(24), config(96)
    estimates = {one: parted(one, 1e-4 * size, 1e-5, 1e-3) for one, size in zip(tried, (16, 32, 64), strict=True)}
    # Seconds a sample as predicted: 142e-6 of few samples, 146e-6 of many, in which the host counts for less.
    estimates |= {few: parted(few, 24e-4, 1e-5, 1e-3), many: parted(many, 130e-4, 1e-5, 1e-3)}
    shortlist = [*tried, few, many]
    measured = [record(one, 1e-4 * one.batch.global_size + 1e-5 + 4e-3, 1.0) for one in tried]
    assert reordered(shortlist, estimates, measured[:2]) == shortlist  # two can't
    learnt = calibrations(estimates, measured)[Executor("jax", jit_compile=True)]
    assert learnt.dispatch.value > 2 * learnt.compute.value
    order = reordered(shortlist, estimates, measured)
    assert order.index(many) < order.index(few)


@pytest.mark.parametrize(("seconds", "said"), [(1.0, 0), (1.4, 0), (3.0, 1), (0.5, 1)])
def test_large_corrections_are_told(seconds, said):
    lines = correction_notes([record(ON_TORCH, seconds, 1.0)])
    assert len(lines) == said
    if said:
        assert lines[0].startswith(f"on torch without jit_compile, updates took {seconds:.2g} times the estimated time")
