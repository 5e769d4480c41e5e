from __future__ import annotations

import pytest

from autoplan.errors import ConfigError, NoFeasibleConfiguration, NothingMeasured
from autoplan.jobs.messages import JobKind
from autoplan.plan.records import FailureKind
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import config, observation
from tests.builders.tune_requests import BEST, OWN, fake, tried


def test_trial_0_is_the_baseline_and_then_come_the_best_predictions(tune):
    result = tune(fake())
    assert tried(result)[:6] == [OWN, config(256), config(128, 2), config(64, 4), config(16, 16), config(8, 32)]
    assert [record.number for record in result.plan.trials] == list(range(len(result.plan.trials)))
    assert len(set(tried(result)) - {OWN}) >= 5


def test_baseline_and_winner_alternate_in_clean_processes(tune):
    client = fake()
    tune(client)
    assert client.of_kind(JobKind.MEASURE)[-4:] == [OWN, BEST, BEST, OWN]
    assert [job.options.get("validation") for job in client.jobs[-4:]] == [None, True, None, None]
    assert client.of_kind(JobKind.NUMERICS) == [OWN, BEST]


def test_the_number_of_trials_is_kept(tune):
    result = tune(fake(), trials=3)
    assert len(result.plan.trials) == 3
    assert "trials ended: all 3 trials are done" in result.plan.notes


def test_one_trial_cannot_reach_what_the_options_ask_for(tune):
    client = fake()
    with pytest.raises(ConfigError, match=r"--trials 1 measures the baseline only, which --fix .* excludes"):
        tune(client, trials=1, fix={"batch": "128"})
    assert JobKind.MEASURE not in {job.kind for job in client.jobs}


def test_a_failure_ends_a_trial_and_not_the_study(tune):
    client = fake(plant=lambda job: failure() if job.kind is JobKind.MEASURE and job.config == BEST else None)
    result = tune(client)
    assert result.plan.config == config(128, 2)
    failed = [record for record in result.plan.trials if record.outcome == "failed"]
    assert [(record.config, record.failure.kind) for record in failed] == [(BEST, FailureKind.OOM)]


def test_a_winner_that_trains_otherwise_is_refused_and_the_next_is_tried(tune):
    losses = lambda one, seed, updates: [2.0 if one == BEST else 1.0] * updates  # noqa: E731
    plan = tune(fake(losses=losses)).plan
    assert plan.config == config(128, 2)
    assert plan.verification.numerics == "exact"


def test_a_winner_that_dies_in_verification_leaves_the_next(tune):
    def plant(job):
        verifying = job.kind is JobKind.MEASURE and "cache_dir" in job.options
        return failure(FailureKind.CRASH) if verifying and job.config == BEST else None

    plan = tune(fake(plant=plant)).plan
    assert plan.config == config(128, 2)


def slower_than_the_baseline(one):
    return one.batch.global_size * (0.001 if one == OWN else 0.01)


def test_training_under_a_pin_is_compared_though_nothing_is_faster(tune):
    losses = lambda one, seed, updates: [1.0 if one == OWN else 2.0] * updates  # noqa: E731
    client = fake(seconds=slower_than_the_baseline, losses=losses)
    plan = tune(client, fix={"batch.accumulation": "2"}).plan
    assert plan.config.batch.accumulation == 2
    assert (plan.verification.numerics, plan.verification.pairs) == ("outside", 0)
    assert plan.config in client.of_kind(JobKind.NUMERICS)
    equal = tune(fake(seconds=slower_than_the_baseline), fix={"batch.accumulation": "2"}).plan
    assert (equal.verification.numerics, equal.verification.speedup) == ("exact", None)
    assert equal.notes[0].startswith("no trial was faster than the baseline; ")


def test_a_slow_first_start_of_the_script_leaves_time_to_compare_and_for_trials(tune, monkeypatch):
    """The observation imports the script's packages first and takes 40 s; later processes take 0.75 s before fit."""
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        now[0] += 40.0 if job.kind is JobKind.OBSERVE else 10.0

    slow = {"setup_seconds": 40.0}
    plan = tune(
        fake(seconds=slower_than_the_baseline, plant=plant, facts=slow),
        fix={"batch.accumulation": "2"},
        trials=2,
        budget_seconds=160.0,
    ).plan
    assert plan.verification.numerics == "exact"
    now[0] = 0.0
    plan = tune(fake(plant=plant, facts=slow), trials=4, budget_seconds=180.0).plan
    assert "trials ended: all 4 trials are done" in plan.notes


def test_settings_that_change_no_number_are_not_compared_under_a_pin(tune):
    client = fake(seconds=slower_than_the_baseline)
    plan = tune(client, fix={"keep_freed_memory": "true"}, only={"keep_freed_memory"}).plan
    assert plan.config == OWN.with_(keep_freed_memory=True)
    assert plan.verification.same_program
    assert client.of_kind(JobKind.NUMERICS) == []


def test_the_budget_leaves_time_to_verify(tune, monkeypatch):
    """On the clock of the made-up machine a trial takes 10 s, a brief run 6 s and a comparison of training 4 s."""
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        now[0] += 4.0 if job.kind is JobKind.NUMERICS else 6.0 if job.options.get("brief") else 10.0

    result = tune(fake(plant=plant), budget_seconds=110.0)
    assert len(result.plan.trials) == 4
    assert "trials ended: the rest of the budget is reserved for verification" in result.plan.notes
    assert result.plan.verification.faster
    assert now[0] <= 110.0
    assert all(event.seconds_left is not None for event in tune.events if event.kind == "trial_finished")


def test_a_budget_that_does_not_reach_the_first_measurement_is_an_error(tune, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        now[0] += 30.0
        return failure(FailureKind.TIMEOUT) if job.kind is JobKind.MEASURE else None

    with pytest.raises(NothingMeasured, match="the budget of 60 s was spent before a configuration was measured") as at:
        tune(fake(plant=plant), budget_seconds=60.0)
    assert at.value.exit_code == 3


PINNED = {"precision": "mixed_bfloat16"}


def refuses_bfloat16(job):
    """Fail every trial with this precision, as a layer that takes float32 only."""
    measuring = job.kind is JobKind.MEASURE and job.config.precision == "mixed_bfloat16"
    return failure(FailureKind.UNSUPPORTED, "TypeError: float32 only") if measuring else None


@pytest.mark.parametrize("wishes", [{"fix": PINNED}, {"fix": PINNED, "only": ()}, {"fix": PINNED, "trials": 2}])
def test_a_pin_with_which_nothing_runs_is_an_error_that_names_it_and_the_cause(tune, tmp_path, wishes):
    with pytest.raises(NoFeasibleConfiguration) as caught:
        tune(fake(plant=refuses_bfloat16), **wishes)
    message = str(caught.value)
    assert message.startswith(
        "no configuration with --fix precision=mixed_bfloat16 runs: trial 1, mixed_bfloat16, batch "
    )
    assert "(not supported: TypeError: float32 only)" in message
    assert caught.value.exit_code == 3
    assert not (tmp_path / "plan.yaml").exists()


def test_a_pin_is_kept_where_one_configuration_with_it_runs(tune):
    def plant(job):
        return refuses_bfloat16(job) if job.config and job.config.batch.accumulation == 1 else None

    plan = tune(fake(plant=plant), fix=PINNED).plan
    assert plan.config.precision == "mixed_bfloat16"
    assert plan.baseline.excluded_by == "--fix precision=mixed_bfloat16"
    excluded = "--fix precision=mixed_bfloat16 excludes the baseline, which is only compared with"
    assert excluded in plan.notes


@pytest.mark.parametrize(
    ("wishes", "ended"),
    [
        ({"budget_seconds": 45.0}, "trials ended because the budget is spent"),
        (
            {"budget_seconds": 45.0, "only": (), "fix": {"accumulation": "1"}},
            "trials ended because the budget is spent",
        ),
    ],
)
def test_trials_that_end_before_a_pin_was_tried_are_an_error_that_says_so(tune, monkeypatch, wishes, ended):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        now[0] += 30.0 if job.kind is JobKind.MEASURE else 1.0

    options = {"fix": PINNED} | wishes
    with pytest.raises(NoFeasibleConfiguration) as caught:
        tune(fake(plant=plant), **options)
    assert str(caught.value).startswith("no configuration with --fix ")
    assert ended in str(caught.value)
    assert "give a larger --budget or more --trials" in str(caught.value)


def test_ctrl_c_before_a_pin_was_measured_leaves_no_plan(tune, tmp_path):
    def plant(job):
        if job.kind is JobKind.MEASURE and job.config.precision == "mixed_bfloat16":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(fake(plant=plant), fix=PINNED)
    assert not (tmp_path / "plan.yaml").exists()


def test_own_settings_that_bring_no_gain_stay_where_nothing_is_shown_to_be_faster(tune):
    """`steps_per_execution` brings nothing on JAX: it is no candidate, but the script may have it."""
    own = config(64, steps_per_execution=4)
    slow = lambda one: 0.01 * one.batch.global_size  # noqa: E731
    plan = tune(FakeClient(facts=observation(own), seconds=slow), only=("steps_per_execution", "precision")).plan
    assert plan.config == own
    assert plan.baseline.excluded_by is None


def test_a_dry_run_lists_and_measures_nothing(tune, tmp_path):
    client = fake()
    result = tune(client, dry_run=True, output=None)
    assert result.plan is None
    assert {job.kind for job in client.jobs} == {JobKind.OBSERVE, JobKind.SPLIT, JobKind.TRACE}
    assert result.shortlist[0].config == BEST
    assert result.shortlist[0].reason == "estimated to take 1.00 times as long as the best"
    assert [one.baseline for one in result.shortlist].count(True) == 1
    own = next(one for one in result.shortlist if one.baseline)
    assert own.reason.startswith("the baseline; estimated to take ")
    assert result.estimated_seconds > 60
    assert not (tmp_path / ".autoplan").exists()
    assert tune(fake(), dry_run=True, output=None, measure=False).estimated_seconds is None, "no trial would run"
