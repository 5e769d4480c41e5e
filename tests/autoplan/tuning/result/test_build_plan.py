from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.plan.records import Evidence, Measurement
from autoplan.tuning.result.build_plan import analytic_plan
from autoplan.tuning.verification.statistics import Timed
from tests.builders import plans
from tests.builders.estimates import candidate
from tests.builders.observations import cluster
from tests.builders.plan_decisions import OTHER, REQUEST, WINNER, decide, findings, record, verified


def test_a_winner_that_holds_is_the_plan_with_the_figures_of_its_trial():
    plan = decide([verified(WINNER)])
    assert plan.config == WINNER
    assert plan.measured.micro_step_seconds == 0.02
    assert plan.verification.speedup == 1.5
    assert plan.evidence is Evidence.MEASURED
    assert plan.predicted.config == WINNER
    assert (
        plan.notes[0]
        == "the plan (float32, batch 256) was shown to be faster than the baseline in 3 pairs of clean processes"
    )


def test_the_whole_fit_is_compilation_and_every_micro_step_of_the_script():
    """1,000 samples an epoch are 32 micro-steps of 32 or 4 of 256; every trial compiled in 1.25 s."""
    plan = decide([verified(WINNER, speedup=1.5)], samples=1000, epochs=4)
    assert plan.whole_fit.baseline_seconds == pytest.approx(1.25 + 4 * 32 * 0.01)
    by_pairs = 1.25 + 4 * 32 * 0.01 / 1.5  # what verification showed, rather than one run of each
    assert plan.whole_fit.seconds == pytest.approx(by_pairs)
    assert [one.whole_fit_seconds for one in plan.trials] == pytest.approx(
        [1.25 + 4 * 32 * 0.01, 1.25 + 4 * 4 * 0.02, 1.25 + 4 * 8 * 0.02]
    )
    kept = decide([], samples=1000, epochs=4)
    assert kept.whole_fit.seconds == kept.whole_fit.baseline_seconds == plan.whole_fit.baseline_seconds
    assert decide([verified(WINNER)], samples=None, steps_per_epoch=None).whole_fit is None
    failed = decide([verified(WINNER)], baseline=None, reference=record(2, OTHER, 0.02), samples=1000, epochs=4)
    assert (failed.whole_fit.baseline_seconds, failed.whole_fit.speedup) == (None, None)


def test_pairs_beside_other_work_are_told():
    def runs(others):
        figures = plans.measurement(0.02, size=256, others_busy_processors=others)
        return (Timed(WINNER, Measurement.model_validate(figures)),)

    quiet, busy = replace(verified(WINNER), runs=runs(0.0)), replace(verified(WINNER), runs=runs(1000.0))
    assert not any("Other processes" in note for note in decide([quiet]).notes)
    assert decide([busy]).notes[1].startswith("Other processes used 1000.0 of ")


@pytest.mark.parametrize(("seconds", "expected"), [(0.1015, OTHER), (0.103, WINNER)])
def test_of_predictions_that_are_as_good_an_analytic_plan_takes_the_least_change(seconds, expected):
    """256 samples an update: a micro-batch of 128 is nearer to the script's 32 than one of 256."""
    facts = findings()
    estimates = {**facts.estimates, OTHER: candidate(OTHER, update_seconds=seconds, headroom=0.08, samples=1024)}
    plan = analytic_plan(REQUEST, replace(facts, estimates=estimates))
    assert plan.config == expected


def test_a_plan_for_several_devices_says_how_many_its_baseline_uses():
    facts = replace(findings(), cluster=cluster(8, kind="gpu", local=False))
    assert analytic_plan(REQUEST, facts).notes[1:3] == [
        (
            "the baseline uses 1 of the 8 devices, as the script does; `autoplan estimate` uses all devices unless "
            "--mesh is given, so its figures differ"
        ),
        (
            "the plan uses 1 of 8 devices: no configuration that may be tried uses more, because the global "
            "batch must divide by the devices or because --fix or --only keep the mesh"
        ),
    ]


def test_an_analytic_plan_is_the_best_prediction_and_measures_nothing():
    plan = analytic_plan(REQUEST, findings())
    assert plan.config == WINNER
    assert (plan.evidence, plan.measured, plan.verification, plan.trials) == (Evidence.ANALYTIC, None, None, [])
    assert plan.notes[0] == (
        "the plan is the best of 3 configurations by analytic estimate (2 of them were ruled out without an estimate); "
        "nothing was measured"
    )
