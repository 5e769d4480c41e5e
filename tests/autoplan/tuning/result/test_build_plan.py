from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.plan.records import Evidence, Failure, FailureKind, Measurement, TrialRecord, Verification
from autoplan.sources.source import SourceSpec
from autoplan.tuning.estimates.estimator import Findings
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.result.build_plan import analytic_plan, measured_plan
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.statistics import Timed
from autoplan.tuning.verification.verifier import Verified
from tests.builders import plans
from tests.builders.estimates import candidate
from tests.builders.observations import VERSIONS, cluster, config, observation

OWN, WINNER, OTHER = config(32, 8), config(256), config(128, 2)
REQUEST = TuneRequest(SourceSpec(kind="script", path="train.py", args=["--fast"], fit_index=2, sha256="0" * 64))


def record(number, own, seconds=None):
    if seconds is None:
        failure = Failure(kind=FailureKind.OOM, message="too large")
        return TrialRecord(number=number, config=own, outcome="failed", failure=failure)
    figures = plans.measurement(seconds, size=own.batch.global_size, accumulation=own.batch.accumulation)
    measured = Measurement.model_validate(figures)
    return TrialRecord(number=number, config=own, outcome="measured", measurement=measured)


def findings(legal=(OWN, WINNER, OTHER), **facts):
    estimates = {WINNER: candidate(WINNER, update_seconds=0.1, headroom=0.08, samples=1024)}
    facts = observation(OWN, **facts)
    return Findings(facts, cluster(), VERSIONS, Space(OWN, tuple(legal), ()), estimates, (WINNER, OTHER), ())


def verified(own, *, faster=True, numerics="exact", speedup=1.5):
    told = Verification(
        pairs=3,
        speedup=speedup,
        speedup_low=speedup - 0.1,
        speedup_high=speedup + 0.1,
        faster=faster,
        numerics=numerics,
    )
    return Verified(own, told)


def decide(checked, *, baseline=0.01, legal=(OWN, WINNER, OTHER), reference=None, **facts):
    first, *rest = [record(0, OWN, baseline), record(1, WINNER, 0.02), record(2, OTHER, 0.02)]
    tried = Tried(first, reference or first, (first, *rest), "all 3 trials are done")
    ranked = [one for one in (*rest, first) if one.measurement and one.config in legal]
    return measured_plan(REQUEST, findings(legal, **facts), tried, checked, ranked)


def test_a_winner_that_holds_is_the_plan_with_the_figures_of_its_trial():
    plan = decide([verified(WINNER)])
    assert plan.config == WINNER
    assert plan.measured.micro_step_seconds == 0.02
    assert plan.verification.speedup == 1.5
    assert plan.evidence is Evidence.MEASURED
    assert plan.predicted.config == WINNER
    assert plan.notes[0] == "accumulation 1: shown faster than the baseline in 3 pairs of clean processes"


@pytest.mark.parametrize(
    ("checked", "why"),
    [
        ([], "no trial was faster than the baseline: the plan is the baseline"),
        (None, "interrupted before a winner was verified: the plan is the baseline"),
        (
            [verified(WINNER, faster=False, speedup=1.02)],
            (
                "the best trial was not shown to be faster in clean processes "
                "(speed-up 1.02, 95% interval 0.92 to 1.12): the plan is the baseline"
            ),
        ),
        ([verified(WINNER, numerics="outside")], "the best trial does not train the same (): the plan is the baseline"),
        (
            [Verified(WINNER, Verification(pairs=0, speedup=None, faster=False, numerics="exact"), out_of_time=True)],
            (
                "the budget ended before the best trial was verified; a larger --budget leaves time for that: "
                "the plan is the baseline"
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
    assert plan.notes[0] == "nothing was measured besides the baseline: the plan is the baseline"


def test_the_last_verified_counts():
    plan = decide([verified(WINNER, numerics="outside"), verified(OTHER)])
    assert plan.config == OTHER


def test_a_baseline_that_pins_rule_out_gives_way_to_the_best_that_trains_the_same():
    plan = decide([verified(WINNER, numerics="outside")], legal=(WINNER, OTHER))
    assert plan.config == OTHER
    assert plan.notes[0].endswith("; your options exclude the baseline, so the plan is the best of the rest")
    slower = verified(WINNER, faster=False, speedup=0.9)
    assert decide([slower], legal=(WINNER, OTHER)).verification == slower.verification


def test_without_a_baseline_there_is_no_speed_up_over_it():
    reference = record(2, OTHER, 0.02)
    plan = decide([verified(WINNER, speedup=1.4)], baseline=None, reference=reference)
    assert plan.config == WINNER
    assert plan.baseline.failure.kind is FailureKind.OOM
    assert (plan.verification.speedup, plan.verification.speedup_low, plan.verification.faster) == (None, None, True)
    assert "1.40 times as fast as float32, batch 128x2" in plan.verification.numerics_detail


def test_the_plan_says_what_it_is_of():
    plan = decide([verified(WINNER)], samples=1000, epochs=4, steps_per_epoch=32)
    assert (plan.source.kind, plan.source.args, plan.source.fit.index) == ("script", ["--fast"], 2)
    assert (plan.source.fit.samples, plan.source.fit.epochs) == (1000, 4)
    assert plan.source.fit.updates == 32 * 4 // 8
    assert (plan.hardware.name, plan.hardware.kind, plan.hardware.devices) == ("a machine", "cpu", 1)
    assert plan.hardware.capacity_bytes == cluster().chip.usable_memory_bytes
    assert plan.environment.keras == "3.15.1"
    assert [one.number for one in plan.trials] == [0, 1, 2]
    assert "trials ended: all 3 trials are done" in plan.notes


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
    assert not any("other processes" in note for note in decide([quiet]).notes)
    assert decide([busy]).notes[1].startswith("other processes used 1,000 of ")


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
            "your own configuration uses 1 of the 8 devices, as the script is; `estimate` takes all of them unless "
            "--mesh says otherwise"
        ),
        (
            "the plan uses 1 of 8 devices: none of the configurations that may be tried uses more, for the global "
            "batch has to divide over the devices, and --fix and --only hold the mesh"
        ),
    ]


def test_an_analytic_plan_is_the_best_prediction_and_measures_nothing():
    plan = analytic_plan(REQUEST, findings())
    assert plan.config == WINNER
    assert (plan.evidence, plan.measured, plan.verification, plan.trials) == (Evidence.ANALYTIC, None, None, [])
    assert plan.notes[0] == "best of 1 configurations by estimate; nothing was measured"
