"""Which runs are made to compare how two configurations train, and what is concluded from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind
from autoplan.jobs.runner import JobRunner
from autoplan.tuning.verification.numerics import TrainingComparison, exactness_expected
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import cluster, config, observation
from tests.builders.sources import SOURCE

OWN, WINNER = config(32, 8), config(256)


def compared(client, *, winner=WINNER, told=None):
    jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(None), Path("logs"), baseline=OWN)
    tell = told.append if told is not None else lambda text: None
    return TrainingComparison(jobs, client.facts, OWN, winner, tell).result()


def jobs_of(client):
    return [(job.config, job.options["seeds"]) for job in client.jobs if job.kind is JobKind.NUMERICS]


def differing(loss):
    """Losses of the plan that are off by so much."""
    return lambda one, seed, updates: [
        1.0 / (n + 1) + 0.01 * seed + (loss if one == WINNER else 0) for n in range(updates)
    ]


def weights(difference, *, path="dense/kernel"):
    variables = [{"path": path, "kind": "weight", "difference": difference}]
    return {"weights": min(difference, 1e-4), "variables": variables}


@pytest.mark.parametrize(
    ("changes", "facts", "expected"),
    [
        ({}, {}, True),
        ({"remat": {"mode": "activations"}}, {}, True),
        ({"precision": "mixed_bfloat16"}, {}, False),
        ({}, {"random_numbers": True}, False),
        ({}, {"batch_statistics": True}, False),
    ],
)
def test_equal_results_are_expected_in_float32_without_dropout_and_batch_norm(changes, facts, expected):
    facts = {"random_numbers": False, "batch_statistics": False} | facts
    assert exactness_expected(config(), config(**changes), **facts) is expected


def test_equal_results_take_one_run_of_each():
    client, told = FakeClient(observation(OWN)), []
    found = compared(client, told=told)
    assert (found.verdict, found.updates, found.applied, found.baseline_applied) == ("exact", 20, 20, 20)
    assert jobs_of(client) == [(OWN, [1]), (WINNER, [1])]
    assert client.jobs[0].options["changes_to"] == client.jobs[1].options["compare_with"]
    assert client.jobs[0].options["accumulations"] == [1, 8]
    assert told[0] == f"verification, 20 updates with seed 1: {OWN.describe()}"


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"steps_per_execution": 4}, "steps_per_execution 4"),
        ({"keep_freed_memory": True}, "keep_freed_memory true"),
        ({"steps_per_execution": 4, "keep_freed_memory": True}, "steps_per_execution 4 and keep_freed_memory true"),
    ],
)
def test_settings_that_change_no_number_need_no_comparison(changes, differs):
    client = FakeClient(observation(OWN))
    found = compared(client, winner=OWN.with_(**changes))
    assert (found.verdict, found.same_program) == ("not_compared", True)
    assert found.detail == f"only {differs} differs, which changes no number"
    assert client.jobs == []


@pytest.mark.parametrize("changes", [{"jit_compile": False}, {"remat": {"mode": "full"}}, {"mesh": {"data": 2}}])
def test_settings_that_may_round_otherwise_are_compared(changes):
    client = FakeClient(observation(OWN))
    assert compared(client, winner=config(32, 8, **changes)).verdict == "exact"


def test_another_effective_batch_is_not_compared():
    found = compared(FakeClient(observation(OWN)), winner=config(512))
    assert (found.verdict, found.detail) == ("not_compared", "the effective batches differ, so no update is the same")


def test_known_random_numbers_are_judged_by_five_seeds_of_one_process():
    client = FakeClient(observation(OWN, random_layers=True), losses=differing(0.001))
    found = compared(client)
    assert (found.verdict, found.seeds) == ("within_seed_band", 5)
    assert jobs_of(client) == [(OWN, [1, 2, 3, 4, 5]), (WINNER, [1])]


def test_results_that_are_equal_in_spite_of_random_layers_are_equal():
    found = compared(FakeClient(observation(OWN, random_layers=True)))
    assert found.verdict == "exact"


def test_seeds_that_one_process_cannot_run_take_further_processes():
    def alone(job):
        if job.kind is JobKind.NUMERICS:
            job.options["seeds"] = job.options["seeds"][:1]

    client = FakeClient(observation(OWN, random_layers=True), losses=differing(0.001), plant=alone)
    assert compared(client).verdict == "within_seed_band"
    assert [seeds[0] for own, seeds in jobs_of(client) if own == OWN] == [1, 2, 3, 4, 5]


def test_seeds_that_do_not_fit_in_one_process_take_one_each():
    def plant(job):
        several = job.kind is JobKind.NUMERICS and len(job.options["seeds"]) > 1
        return failure() if several else None

    client = FakeClient(observation(OWN, random_layers=True), losses=differing(0.001), plant=plant)
    assert compared(client).verdict == "within_seed_band"
    assert [seeds for own, seeds in jobs_of(client) if own == OWN] == [[1, 2, 3, 4, 5], [1], [2], [3], [4], [5]]


def test_a_difference_is_called_one_only_after_the_baseline_has_repeated_its_results():
    client = FakeClient(observation(OWN), losses=differing(0.02))
    found = compared(client)
    assert (found.verdict, found.seeds) == ("outside", 1)
    assert jobs_of(client) == [(OWN, [1]), (WINNER, [1]), (OWN, [1])]
    assert "seed" not in found.detail


def test_random_numbers_that_were_drawn_unnoticed_lead_to_the_seeds():
    client = FakeClient(
        observation(OWN),
        losses=differing(0.01),
        updated=lambda one, seed: {"random_draws": ["sampling/seed_generator/seed_generator_state"]},
    )
    found = compared(client)
    assert (found.verdict, found.seeds) == ("within_seed_band", 5)
    assert jobs_of(client) == [(OWN, [1]), (WINNER, [1]), (OWN, [1, 2, 3, 4, 5])]
    assert found.detail.startswith("random numbers are drawn (sampling/seed_generator/seed_generator_state); mean loss")


def test_a_baseline_that_does_not_repeat_itself_is_judged_by_seeds():
    calls = []

    def losses(one, seed, updates):
        calls.append(one)
        return [1.0 / (n + 1) + 0.01 * seed + 0.001 * len(calls) for n in range(updates)]

    found = compared(FakeClient(observation(OWN), losses=losses))
    assert found.verdict == "within_seed_band"
    assert found.detail.startswith("the baseline does not repeat its own results; ")


def test_a_weight_that_differs_is_compared_with_what_rounding_does_to_the_baseline():
    nudged = []

    def changed(one):
        return weights(0.5) if one == WINNER else weights(0.2)

    def plant(job):
        nudged.append(job.options.get("nudged", False))

    found = compared(FakeClient(observation(OWN), changed=changed, plant=plant))
    assert (found.verdict, found.weight_difference, found.weight_difference_of) == ("exact", 0.5, "dense/kernel")
    assert "as far as rounding moves it" in found.detail
    assert nudged == [False, False, True]
    steady = FakeClient(observation(OWN), changed=lambda one: weights(0.5) if one == WINNER else weights(1e-6))
    assert compared(steady).verdict == "outside"


def test_skipped_updates_leave_no_verdict():
    client = FakeClient(observation(OWN), updated=lambda one, seed: {"applied": 0 if one == WINNER else 20})
    found = compared(client)
    assert (found.verdict, found.applied, found.baseline_applied) == ("not_compared", 0, 20)
    assert found.detail.startswith("0 of the 20 compared updates were applied under the plan")


@pytest.mark.parametrize("whose", ["plan", "baseline"])
def test_a_run_that_fails_leaves_no_verdict(whose):
    failing = WINNER if whose == "plan" else OWN
    client = FakeClient(
        observation(OWN),
        plant=lambda job: failure() if job.kind is JobKind.NUMERICS and job.config == failing else None,
    )
    found = compared(client)
    assert (found.verdict, found.detail) == (
        "not_compared",
        f"the run for the {whose}'s losses failed (oom: too large)",
    )


def test_a_loss_that_is_no_number_is_a_difference():
    losses = lambda one, seed, updates: [1.0] * (updates - 1) + [1e400 if one == WINNER else 1.0]  # noqa: E731
    assert compared(FakeClient(observation(OWN), losses=losses)).verdict == "outside"
