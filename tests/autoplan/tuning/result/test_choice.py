from __future__ import annotations

import pytest

from autoplan.plan.records import FailureKind, Verification
from autoplan.tuning.result.build_plan import measured_plan
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.verifier import Verified
from tests.builders.plan_decisions import OTHER, OWN, REQUEST, WINNER, decide, findings, record, verified


@pytest.mark.parametrize(
    ("checked", "why"),
    [
        ([], "no trial was faster than the baseline: the plan is the baseline"),
        (None, "interrupted before a winner was verified: the plan is the baseline"),
        (
            [verified(WINNER, faster=False, speedup=1.02)],
            (
                "the best trial was not shown to be faster in clean processes "
                "(speed-up 1.02, 95% confidence interval 0.92 to 1.12): the plan is the baseline"
            ),
        ),
        (
            [verified(WINNER, numerics="outside")],
            "the best trial gives different training results (): the plan is the baseline",
        ),
        (
            [Verified(WINNER, Verification(pairs=0, speedup=None, faster=False, numerics="exact"), out_of_time=True)],
            (
                "what was left of the time budget was too short to verify the best trial; a larger --budget leaves "
                "time for that: the plan is the baseline"
            ),
        ),
    ],
)
def test_otherwise_the_plan_is_the_baseline_and_says_why(checked, why):
    plan = decide(checked)
    assert plan.config == OWN
    assert plan.measured == plan.baseline.measured
    assert plan.notes[0] == why
    assert (plan.verification.faster, plan.verification.speedup) == (False, None)
    assert why.startswith(plan.verification.numerics_detail)


def test_a_baseline_alone_was_compared_with_nothing():
    alone = record(0, OWN, 0.01)
    tried = Tried(alone, alone, (alone,), "the budget is spent")
    plan = measured_plan(REQUEST, findings(), tried, [], [alone])
    assert plan.notes[0] == "only the baseline was measured: the plan is the baseline"


def test_the_last_verified_counts():
    plan = decide([verified(WINNER, numerics="outside"), verified(OTHER)])
    assert plan.config == OTHER


def test_a_baseline_that_pins_rule_out_gives_way_to_the_best_that_trains_the_same():
    plan = decide([verified(WINNER, numerics="outside")], legal=(WINNER, OTHER))
    assert plan.config == OTHER
    excluded = "; --fix batch.accumulation=1 excludes the baseline, so the plan is the best of the rest"
    assert plan.notes[0].endswith(excluded)
    assert plan.baseline.excluded_by == "--fix batch.accumulation=1"
    slower = verified(WINNER, faster=False, speedup=0.9)
    assert decide([slower], legal=(WINNER, OTHER)).verification == slower.verification


def test_without_a_baseline_there_is_no_speed_up_over_it():
    reference = record(2, OTHER, 0.02)
    plan = decide([verified(WINNER, speedup=1.4)], baseline=None, reference=reference)
    assert plan.config == WINNER
    assert plan.baseline.failure.kind is FailureKind.OOM
    assert (plan.verification.speedup, plan.verification.speedup_low, plan.verification.faster) == (None, None, True)
    assert "1.40 times as fast as float32, batch 128, accumulation 2" in plan.verification.numerics_detail
