"""What a few updates of baseline and plan say about whether both train the same."""

from __future__ import annotations

import math

import pytest

from autoplan.jobs.messages import ChangeComparison, NumericsRun, UpdateRun, VariableDifference
from autoplan.tuning.verification.judgement import (
    Circumstances,
    Tolerances,
    exactness,
    incomparable,
    within_seeds,
)

LOSSES = [2.0 / (n + 1) for n in range(20)]
HALF = 2.7764451 * 0.01 * math.sqrt(2.5) * math.sqrt(1.2)
"""Half width of the 95% interval of five seeds whose figures are 0.01 apart: t * s * sqrt(1 + 1/5)."""
HALF_99 = HALF * 4.6040949 / 2.7764451


def run(losses=LOSSES, *, seed=1, applied=20, weight_change=1.0, **state):
    return UpdateRun(seed=seed, losses=losses, applied=applied, weight_change=weight_change, state_changes=state)


def variable(path, difference, kind="weight", **changes):
    return VariableDifference(path=path, kind=kind, difference=difference, **changes)


def plan(losses=LOSSES, *, weights=0.0, variables=(), compared=True, **fields):
    found = ChangeComparison(weights=weights, variables=list(variables)) if compared else None
    return NumericsRun(runs=[run(losses, **fields)], compared=found)


@pytest.mark.parametrize(("relative", "holds"), [(0.0, True), (0.9e-5, True), (1.1e-5, False)])
def test_equal_is_a_relative_1e_5_of_the_loss_of_every_update(relative, holds):
    found = exactness(run(), plan([*LOSSES[:-1], LOSSES[-1] * (1 + relative)]))
    assert found.holds is holds
    assert found.faults == (() if holds else ("loss",))
    assert "over 20 updates" in found.detail


@pytest.mark.parametrize(
    ("weights", "worst", "holds"), [(0.9e-3, 0.9e-3, True), (1.1e-3, 0.9e-3, False), (0.9e-3, 1.1e-3, False)]
)
def test_equal_is_a_relative_1e_3_of_the_change_of_every_weight_and_of_all_together(weights, worst, holds):
    variables = [variable("dense/kernel", 1e-6), variable("dense/bias", worst)]
    found = exactness(run(), plan(weights=weights, variables=variables))
    assert found.holds is holds
    assert (found.weight_difference, found.weight_difference_of) == (worst, "dense/bias")
    assert "(dense/bias)" in found.detail


def test_a_weight_that_rounding_moves_as_far_may_differ():
    """The bias before a softmax has no gradient but rounding, which Adam enlarges to whole steps."""
    ours = plan(weights=1e-5, variables=[variable("key/bias", 0.8), variable("kernel", 1e-6)])
    rounding = ChangeComparison(weights=1e-5, variables=[variable("key/bias", 0.1), variable("kernel", 1e-6)])
    assert exactness(run(), ours).only_weights
    assert exactness(run(), ours, rounding=rounding).holds
    still = ChangeComparison(weights=1e-5, variables=[variable("key/bias", 0.07), variable("kernel", 0.5)])
    assert not exactness(run(), ours, rounding=still).holds


def test_state_that_counts_micro_steps_is_named_with_both_counts():
    counter = variable("annealed/calls", 3.0, "state", baseline_change=20, plan_change=80)
    found = exactness(run(), plan(variables=[variable("kernel", 0.0), counter]))
    assert (found.faults, found.state) == (("state",), "differs")
    assert "the variable annealed/calls changes by 20 under the baseline and by 80 under the plan" in found.detail
    alike = exactness(run(), plan(variables=[variable("kernel", 0.0), variable("calls", 0.0, "state")]))
    assert (alike.holds, alike.state) == (True, "equal")


def test_losses_alone_are_not_called_equal():
    found = exactness(run(), plan(compared=False))
    assert (found.faults, found.holds) == ((), False)
    assert found.detail.endswith("the changes of the weights could not be compared")


def test_another_backend_has_wider_tolerances():
    ours = plan([loss * 1.0005 for loss in LOSSES], weights=5e-3)
    assert not exactness(run(), ours).holds
    assert exactness(run(), ours, Tolerances(loss=1e-3, change=1e-2)).holds


def seeds(spread, **state):
    runs = [
        run([loss + spread * (seed - 2) for loss in LOSSES], seed=seed + 1, weight_change=1 + spread * (seed - 2))
        for seed in range(5)
    ]
    return [one.model_copy(update={"state_changes": state}) for one in runs]


@pytest.mark.parametrize(("share", "verdict"), [(0.98, "within_seed_band"), (1.02, "outside")])
def test_the_band_is_the_prediction_interval_of_five_seeds(share, verdict):
    shifted = plan([loss + share * HALF for loss in LOSSES])
    assert within_seeds(seeds(0.01), shifted, Circumstances())[0] == verdict
    heavier = plan(weight_change=1 + share * HALF_99)
    assert within_seeds(seeds(0.01), heavier, Circumstances())[0] == verdict


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 23), ("float16", 10), ("bfloat16", 7)])
def test_without_any_spread_the_band_is_what_rounding_explains(dtype, bits):
    for share, verdict in ((0.99, "within_seed_band"), (1.01, "outside")):
        nudged = plan([loss * (1 + share * math.sqrt(2.0**-bits)) for loss in LOSSES])
        assert within_seeds(seeds(0.0), nudged, Circumstances(compute_dtype=dtype))[0] == verdict


@pytest.mark.parametrize(
    ("shift", "other_statistics", "verdict"),
    [
        (-0.5, False, "outside"),
        (-0.5, True, "not_compared"),
        (0.5, True, "outside"),
        (0.001, True, "within_seed_band"),
    ],
)
def test_batch_norm_over_other_micro_batches_may_lower_the_loss_but_not_raise_it(shift, other_statistics, verdict):
    known = Circumstances(other_statistics=other_statistics)
    found, detail, _ = within_seeds(seeds(0.01), plan([loss + shift for loss in LOSSES]), known)
    assert found == verdict
    assert ("BatchNormalization" in detail) is (verdict == "not_compared")


def test_counters_are_judged_in_the_band_too_and_statistics_of_other_micro_batches_are_not():
    base = seeds(0.01, **{"annealed/calls": 20.0, "norm/moving_mean": 1.0})
    state = {"annealed/calls": 80.0, "norm/moving_mean": 1.0}
    verdict, detail, found = within_seeds(base, plan(**state), Circumstances())
    assert (verdict, found) == ("outside", "differs")
    assert detail.startswith("the variable annealed/calls changes by 80, outside ")
    statistics = plan(
        **{"annealed/calls": 20.0, "norm/moving_mean": 3.0},
        variables=[variable("norm/moving_mean", 2.0, "batch_statistics")],
    )
    assert within_seeds(base, statistics, Circumstances())[0] == "outside"
    assert within_seeds(base, statistics, Circumstances(other_statistics=True))[0] == "within_seed_band"


def test_runs_without_weights_are_not_said_to_train_alike():
    base = [one.model_copy(update={"weight_change": None}) for one in seeds(0.01)]
    verdict, detail, _ = within_seeds(base, plan(), Circumstances())
    assert verdict == "not_compared"
    assert detail.startswith("the changes of the weights could not be compared")


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (run([]), run(), "the baseline has 0 losses and the plan has 20"),
        (run(), run([]), "the baseline has 20 losses and the plan has 0"),
        (run([*LOSSES[:-1], math.nan]), run(), "a loss of the baseline is not a finite number"),
        (run(), run(applied=0), "0 of the 20 compared updates were applied under the plan, and 20 under the baseline"),
        (run(applied=18), run(), "18 of the 20 compared updates were applied under the baseline"),
        (run(), run(), ""),
        (run(applied=None), run(applied=3), ""),
    ],
)
def test_what_cannot_be_compared_says_why(theirs, ours, why):
    found = incomparable(theirs, ours, 20)
    assert found.startswith(why)
    assert bool(found) == bool(why)
