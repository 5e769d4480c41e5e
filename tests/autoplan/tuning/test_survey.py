from __future__ import annotations

import pytest

from autoplan.errors import ConfigError, NoFeasibleConfiguration, NothingMeasured, WorkloadError
from autoplan.jobs.messages import JobKind, SplitProbe
from autoplan.plan.records import FailureKind
from autoplan.sources import keras_backend
from tests.builders.fake_client import failure
from tests.builders.observations import cluster, config
from tests.builders.tune_requests import BEST, fake


def untraceable(job):
    return failure(FailureKind.CRASH, "odd") if job.kind is JobKind.TRACE else None


def test_without_jax_trials_go_without_estimates_and_that_is_said(tune, monkeypatch):
    monkeypatch.setattr(keras_backend, "installed", lambda name: name == "torch")
    plan = tune(fake(), backend="torch").plan
    assert plan.predicted is None
    assert plan.config == BEST.with_(backend="torch")
    assert any("tracing it on JAX, which is not installed here" in note for note in plan.notes)


def test_a_model_too_large_for_every_configuration_is_told(tune):
    with pytest.raises(NoFeasibleConfiguration, match="the least memory needed is"):
        tune(fake(), here=cluster(usable_bytes=20_000))


def test_a_budget_that_ends_while_the_step_is_traced_says_nothing_about_memory(tune):
    slow = fake(plant=lambda job: failure(FailureKind.TIMEOUT) if job.kind is JobKind.TRACE else None)
    with pytest.raises(NothingMeasured, match="ended while the training was inspected"):
        tune(slow, budget_seconds=0.5, here=cluster(devices=2))
    assert not any("nothing fits" in event.text for event in tune.events)


def test_a_training_step_that_cannot_be_traced_is_measured_by_least_change(tune):
    plan = tune(fake(plant=untraceable)).plan
    assert plan.config == BEST
    assert plan.predicted is None
    assert all(record.predicted_update_seconds is None for record in plan.trials)
    told = (
        "nothing could be estimated, so trials went by least change from the script: the training step cannot be traced"
    )
    assert any(note.startswith(told) for note in plan.notes)
    listed = tune(fake(plant=untraceable), dry_run=True).shortlist
    assert [(one.estimate, one.reason) for one in listed[:2]] == [
        (None, "no estimate; the baseline"),
        (None, "no estimate; accumulation 4"),
    ]


def test_without_estimates_and_without_measuring_there_is_no_plan(tune):
    with pytest.raises(WorkloadError, match=r"cannot be traced as it is \(crash: odd\)"):
        tune(fake(plant=untraceable), measure=False)


def test_pins_hold_even_where_the_baseline_breaks_them(tune):
    plan = tune(fake(BEST), fix={"accumulation": "8"}, only=()).plan
    assert plan.config.batch == config(32, 8).batch
    assert "--fix batch.accumulation=8 excludes the baseline, so the plan is the best of the rest" in plan.notes[0]
    assert plan.verification.faster is False


def test_an_update_that_a_probe_found_to_differ_from_its_halves_is_not_split(tune):
    reason = "the loss info_nce depends on which rows a micro-step has together"
    client = fake(facts={"probe": SplitProbe(split="differs", split_reason=reason)})
    plan = tune(client).plan
    assert {record.config.batch for record in plan.trials} == {plan.baseline.config.batch}
    assert f"an update is split as in the script: {reason}" in plan.notes
    with pytest.raises(ConfigError, match=f"stays 32 with an accumulation of 8 here, because {reason}"):
        tune(client, fix={"accumulation": "2"})
    with pytest.raises(
        NoFeasibleConfiguration, match=rf"none of .* fits: .*\. The batch is not split, because {reason}$"
    ):
        tune(client, here=cluster(usable_bytes=20_000))
