from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind
from autoplan.jobs.runner import JobRunner
from autoplan.plan import file
from autoplan.plan.records import Failure, FailureKind, TrialRecord
from autoplan.tuning.verification.verifier import (
    BRIEF,
    BRIEF_SECONDS,
    FEWEST_PAIRS,
    LONGER,
    MOST_PAIRS,
    NUMERICS_SECONDS,
    PAIRS,
    Verifier,
    unverified,
    verification_seconds,
)
from tests.builders.fake_client import FakeClient, failure, micro_step_seconds
from tests.builders.observations import cluster, config, observation
from tests.builders.sources import SOURCE
from tests.builders.tune_requests import fake, interrupting

OWN, WINNER = config(32, 8), config(256)


def verify(client, *, clock=None, most_pairs=MOST_PAIRS, events=None):
    return verifier(client, clock=clock, most_pairs=most_pairs, events=events).verify(OWN, WINNER)


def verifier(client, *, clock=None, most_pairs=MOST_PAIRS, events=None):
    jobs = JobRunner(client, SOURCE, "jax", cluster(), clock or Clock.start(None), Path("logs"), baseline=OWN)
    watch = events.append if events is not None else lambda event: None
    return Verifier(jobs, client.facts, watch, most_pairs)


def alternately_better():
    """Every second pair the winner is faster, else slower: nothing can be concluded."""
    runs = Counter()

    def seconds(one):
        runs[one] += 1
        even = runs[one] % 2 == 0
        return one.batch.global_size * (0.001 if one == OWN else 0.0005 if even else 0.002)

    return FakeClient(observation(OWN), seconds=seconds)


def pairs_run(client):
    return len(client.of_kind(JobKind.MEASURE)) // 2


def slightly_faster(one):
    return one.batch.global_size * (0.0012 if one == OWN else 0.001)


def test_a_clear_result_takes_two_brief_pairs():
    client = FakeClient(observation(OWN))
    found = verify(client)
    assert (pairs_run(client), found.verification.pairs) == (FEWEST_PAIRS, FEWEST_PAIRS)
    assert found.holds
    measured = [job.options for job in client.jobs if job.kind is JobKind.MEASURE]
    assert {options["group_seconds"] for options in measured} == {BRIEF["group_seconds"]}
    assert all(options["brief"] for options in measured)


def test_a_small_gain_takes_a_third_pair_of_longer_runs():
    client = FakeClient(observation(OWN), seconds=slightly_faster)
    found = verify(client)
    assert (pairs_run(client), found.verification.pairs) == (PAIRS, PAIRS)
    assert found.holds
    lengths = [job.options["group_seconds"] for job in client.jobs if job.kind is JobKind.MEASURE]
    assert lengths == [BRIEF["group_seconds"]] * 4 + [LONGER["group_seconds"]] * 2


def test_an_open_result_takes_more_pairs_and_then_is_not_faster():
    client = alternately_better()
    found = verify(client)
    assert (pairs_run(client), found.verification.pairs) == (MOST_PAIRS, MOST_PAIRS)
    assert not found.holds


def test_more_pairs_are_not_taken_where_they_are_not_wanted():
    client = alternately_better()
    verify(client, most_pairs=PAIRS)
    assert pairs_run(client) == PAIRS


def test_every_run_of_a_pair_finds_the_same_compilation_cache():
    client = FakeClient(observation(OWN))
    verify(client)
    measured = [job for job in client.jobs if job.kind is JobKind.MEASURE]
    assert {job.options["cache_dir"] for job in measured} == {str(Path("logs/compilation_cache").absolute())}


def test_repeats_of_the_reference_start_with_its_own_trial():
    client = FakeClient(observation(OWN))
    first = verify(client).runs[0].measurement
    again = FakeClient(observation(OWN))
    runs = verifier(again).repeat(OWN, first)
    assert [run.config for run in runs] == [OWN] * 4
    assert runs[0].measurement is first
    assert len(again.of_kind(JobKind.MEASURE)) == 3


def test_the_first_run_of_the_winner_validates_saves_and_ends_an_epoch():
    client = FakeClient(observation(OWN))
    told = verify(client).verification
    extras = [job.config for job in client.jobs if job.options.get("checkpoint")]
    assert extras == [WINNER]
    assert (told.validation_ran, told.checkpoint_saved, told.remainder_ran) == (True, True, True)


def test_a_budget_that_ends_within_the_third_pair_leaves_two(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        if job.kind is not JobKind.MEASURE:
            return None
        now[0] = min(now[0] + 10.0, 46.0)
        return failure(FailureKind.TIMEOUT) if now[0] == 46.0 else None

    found = verify(FakeClient(observation(OWN), plant=plant), clock=Clock.start(46.0))
    assert found.verification.pairs == 2
    assert found.verification.speedup == pytest.approx(
        (micro_step_seconds(OWN) / 32) / (micro_step_seconds(WINNER) / 256)
    )


def test_a_budget_that_ends_within_the_first_pair_says_nothing_against_the_winner(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        if job.kind is not JobKind.MEASURE:
            return None
        now[0] = 20.0
        return failure(FailureKind.TIMEOUT)

    found = verify(FakeClient(observation(OWN), plant=plant), clock=Clock.start(20.0))
    assert (found.holds, found.out_of_time) == (False, True)
    assert (found.verification.numerics, found.verification.failure) == ("exact", "")


def test_a_run_that_fails_says_so_and_shows_nothing():
    client = FakeClient(
        observation(OWN),
        plant=lambda job: failure(FailureKind.NAN, "the loss is nan") if job.kind is JobKind.MEASURE else None,
    )
    found = verify(client)
    assert not found.holds
    assert (found.verification.pairs, found.verification.speedup, found.out_of_time) == (0, None, False)
    assert found.verification.failure == "a run of the baseline failed: nan: the loss is nan"
    assert "failed" not in found.verification.numerics_detail


def test_losses_that_cannot_be_had_are_not_compared():
    client = FakeClient(observation(OWN), plant=lambda job: failure() if job.kind is JobKind.NUMERICS else None)
    found = verify(client)
    assert found.verification.numerics == "not_compared"
    assert found.verification.numerics_detail == "the run for the baseline's losses failed (oom: too large)"
    assert found.verification.faster


def test_what_is_told_on_the_way_names_pair_and_configuration():
    events = []
    verify(FakeClient(observation(OWN)), events=events)
    assert {event.kind for event in events} == {"verification"}
    assert events[-1].text == f"verification, pair 2 of 2: {OWN.describe()}"


@pytest.mark.parametrize(("exact", "runs"), [(True, 2), (False, 3)])
def test_the_time_for_verification_is_of_two_pairs_and_the_losses(exact, runs):
    reference_seconds, winner_seconds, setup_seconds = 30.0, 10.0, 2.0
    pairs = 2 * (reference_seconds - BRIEF_SECONDS + winner_seconds - BRIEF_SECONDS)
    expected = pairs + runs * (setup_seconds + NUMERICS_SECONDS)
    assert verification_seconds(reference_seconds, winner_seconds, setup_seconds, exact=exact) == expected


def test_what_was_not_verified_says_why():
    told = unverified("nothing was better")
    assert (told.pairs, told.speedup, told.faster, told.numerics) == (0, None, False, "not_compared")
    assert told.numerics_detail == "nothing was better"


@pytest.mark.parametrize(("batch_norm", "numerics"), [(True, "not_compared"), (False, "outside")])
def test_batch_norm_over_larger_micro_batches_is_not_held_against_a_lower_loss(batch_norm, numerics):
    losses = lambda one, seed, updates: [0.5 if one == WINNER else 1.0 + 0.01 * seed] * updates  # noqa: E731
    facts = observation(OWN, batch_norm=batch_norm, random_layers=True)
    assert verify(FakeClient(facts, losses=losses)).verification.numerics == numerics


def interrupted_in(number):
    """A client that meets Ctrl-C in the measurement of this number, counted from 1."""
    seen = []

    def plant(job):
        if job.kind is JobKind.MEASURE:
            seen.append(job)
            if len(seen) == number:
                raise KeyboardInterrupt

    return FakeClient(observation(OWN), plant=plant)


def test_ctrl_c_keeps_the_pairs_that_are_complete():
    client = interrupted_in(6)
    client.seconds = slightly_faster
    one = verifier(client)
    found = one.verify(OWN, WINNER)
    assert one.interrupted
    assert found.verification.pairs == 2
    assert found.verification.speedup == pytest.approx(1.2)
    assert len(found.runs) == 4


def test_ctrl_c_before_there_are_two_pairs_passes():
    one = verifier(interrupted_in(4))
    with pytest.raises(KeyboardInterrupt):
        one.verify(OWN, WINNER)


def ranked(*configs):
    return [TrialRecord(number=number, config=one, outcome="measured") for number, one in enumerate(configs, 1)]


def test_ctrl_c_in_the_second_winner_leaves_what_became_of_the_first():
    client = interrupted_in(2 * FEWEST_PAIRS + 1)
    client.seconds = lambda one: 1.0 if one == WINNER else micro_step_seconds(one)
    one = verifier(client)
    found = one.verify_best(OWN, ranked(WINNER, config(128, 2)))
    assert [verified.config for verified in found] == [WINNER]
    assert one.interrupted
    with pytest.raises(KeyboardInterrupt):
        verifier(interrupted_in(1)).verify_best(OWN, ranked(WINNER))


def test_ctrl_c_keeps_the_repeats_that_are_done():
    first = verify(FakeClient(observation(OWN))).runs[0].measurement
    one = verifier(interrupted_in(2))
    assert [run.config for run in one.repeat(OWN, first)] == [OWN] * 2
    assert one.interrupted


# Through the planner


def test_ctrl_c_ends_the_trials_and_the_best_is_verified_and_written(tune):
    result = tune(fake(plant=interrupting(after=3)))
    assert result.interrupted
    assert len(result.plan.trials) == 3
    assert result.plan.config == WINNER
    assert (result.plan.verification.pairs, result.plan.verification.faster) == (2, True)
    assert result.written_to.exists()


def test_a_second_ctrl_c_leaves_the_baseline_and_says_so(tune):
    result = tune(fake(plant=interrupting(after=3, times=2)))
    assert result.interrupted
    assert result.plan.config == OWN
    assert result.plan.notes[0] == "interrupted before a winner was verified: the plan is the baseline"
    assert result.written_to.exists()


def test_what_is_known_at_ctrl_c_is_written_before_it_is_verified(tune, tmp_path):
    """Whoever sends SIGTERM may send SIGKILL soon after."""
    written = []
    interrupt = interrupting(after=3)

    def plant(job):
        if job.kind is JobKind.NUMERICS and not written:
            written.append(file.read(tmp_path / "plan.yaml"))
        return interrupt(job)

    tune(fake(plant=plant))
    assert written[0].config == OWN
    assert len(written[0].trials) == 3
    assert written[0].notes[0] == "interrupted before a winner was verified: the plan is the baseline"


def test_ctrl_c_in_the_third_pair_leaves_a_plan_of_two(tune):
    result = tune(fake(plant=interrupting(after=8 + 5), seconds=slightly_faster))
    assert result.interrupted
    assert result.plan.config != OWN
    assert (result.plan.verification.pairs, result.plan.verification.faster) == (2, True)


def test_a_trial_that_is_ended_from_outside_is_told_and_run_again(tune):
    killed = Failure(kind=FailureKind.CRASH, message="ended by SIGKILL in phase measure", outside=True)
    answers = iter([None, killed])
    result = tune(fake(plant=lambda job: next(answers, None) if job.kind is JobKind.MEASURE else None))
    assert [record.outcome for record in result.plan.trials] == ["measured"] * 8
    notes = [event.text for event in tune.events if event.kind == "note"]
    assert notes == ["ended by SIGKILL in phase measure; it is tried once more"]


def test_an_interrupted_trial_is_tried_again_when_the_study_is_resumed(tune):
    first = tune(fake(plant=interrupting(after=3)), study=None)
    client = fake()
    second = tune(client, study=None)
    assert second.study_path == first.study_path
    assert any(event.text.startswith("3 trials of an earlier run are kept") for event in tune.events)
    assert second.plan.trials[:3] == first.plan.trials
    assert len(second.plan.trials) == 8
    assert OWN not in client.of_kind(JobKind.MEASURE)[:5]


def test_a_plan_whose_loss_stops_being_finite_trains_differently():
    planted = failure(FailureKind.NAN, "loss is inf")
    client = FakeClient(
        observation(OWN),
        plant=lambda job: planted if job.kind is JobKind.MEASURE and job.config == WINNER else None,
    )
    told = verify(client).verification
    assert (told.numerics, told.numerics_detail) == ("outside", "in a longer run of the plan loss is inf")
    assert told.failure == "a run of the plan failed: nan: loss is inf"


def test_a_plan_that_skips_most_updates_is_not_timed():
    client = FakeClient(observation(OWN), updated=lambda one, seed: {"applied": 0 if one == WINNER else 20})
    found = verify(client)
    assert (found.holds, pairs_run(client)) == (False, 0)
    assert (found.verification.updates_applied, found.verification.baseline_updates_applied) == (0, 20)


def test_the_record_of_a_comparison_says_what_was_compared():
    told = verify(FakeClient(observation(OWN))).verification
    assert (told.updates_compared, told.updates_applied, told.seeds_compared) == (20, 20, 1)
    assert (told.largest_weight_difference, told.state, told.failure) == (0.0, "none", "")
