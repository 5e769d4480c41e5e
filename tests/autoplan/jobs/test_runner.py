from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import NoFeasibleConfiguration, OutputError, SourceError, WorkerError
from autoplan.jobs.answers import explain_failure
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind, JobResult
from autoplan.jobs.runner import (
    LONGEST_LIMIT_SECONDS,
    PATIENCE,
    SHORTEST_LIMIT_SECONDS,
    JobRunner,
    temporary_folder,
)
from autoplan.plan.records import Failure, FailureKind, Measurement
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import GIB, cluster, config
from tests.builders.sources import SOURCE


class Limits(FakeClient):
    """Keeps the limits that each job was given."""

    def run(self, job, **limits):
        self.limits = limits
        return super().run(job, **limits)


def jobs(client, *, budget=None, here=None, **fields):
    fields = {"baseline": config(), **fields}
    return JobRunner(client, SOURCE, "jax", here or cluster(), Clock.start(budget), **fields)


@pytest.mark.parametrize(
    ("trial_seconds", "limit"),
    [(1.0, SHORTEST_LIMIT_SECONDS), (100.0, PATIENCE * 100.0), (1e6, LONGEST_LIMIT_SECONDS)],
)
def test_limits_follow_from_the_baselines_trial(trial_seconds, limit):
    client = Limits()
    jobs(client).patient(trial_seconds).measure(config(), "trial-1")
    assert client.limits["time_limit_seconds"] == limit


def test_no_job_outlives_the_budget(monkeypatch):
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: 0.0)
    client = Limits()
    jobs(client, budget=7.0).measure(config(), "trial-1")
    assert client.limits["time_limit_seconds"] == 7.0


def test_a_timeout_at_the_end_of_the_budget_says_nothing_of_the_configuration(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])
    one = jobs(FakeClient(), budget=60.0)
    timeout, crash = failure(FailureKind.TIMEOUT), failure(FailureKind.CRASH)
    assert not one.cut_short(timeout)
    now[0] = 60.0
    assert one.cut_short(timeout)
    assert not one.cut_short(crash)


@pytest.mark.parametrize(
    ("here", "limit"),
    [
        (cluster(usable_bytes=8 * GIB), 8 * GIB),
        (cluster(4, usable_bytes=2 * GIB), 8 * GIB),
        (cluster(kind="gpu"), None),
        (cluster(local=False), None),
    ],
)
def test_the_memory_of_a_cpu_is_watched(here, limit):
    client = Limits()
    jobs(client, here=here).measure(config(), "trial-1")
    assert client.limits["memory_limit_bytes"] == limit
    jobs(client, here=here).observe()
    assert client.limits["memory_limit_bytes"] == limit
    jobs(client, here=here).trace(config())
    assert client.limits["memory_limit_bytes"] is None, "an analysis is no part of the training"


def test_jobs_carry_configuration_baseline_and_simulated_devices():
    client = FakeClient()
    own = config(32)
    jobs(client, here=cluster(4), baseline=own).measure(config(64, mesh={"data": 4}), "trial-1", options={"groups": 2})
    (job,) = client.jobs
    assert job.config == config(64, mesh={"data": 4})
    assert job.baseline == own
    assert (job.devices, job.backend, job.options["groups"]) == (4, "jax", 2)
    assert job.options.keys() == {"groups", "tuning_began"}


def test_callbacks_that_one_trial_has_seen_write_are_left_out_of_later_trials():
    class Writes(FakeClient):
        def run(self, job, **limits):
            result = super().run(job, **limits)
            return replace(result, value=result.value | {"writers": {1: "writes trace.txt"}})

    client = Writes()
    one = jobs(client, baseline=config(32))
    one.measure(config(32), "trial-0")
    one.with_(limit_seconds=1.0).measure(config(32), "trial-1")
    first, second = client.jobs
    assert "left_out" not in first.options
    assert second.options["left_out"] == {1: "writes trace.txt"}
    assert first.options["tuning_began"] == second.options["tuning_began"]


def test_a_measurement_or_a_failure_comes_back():
    assert isinstance(jobs(FakeClient()).measure(config(), "trial-1"), Measurement)
    planted = failure()
    assert jobs(FakeClient(plant=lambda job: planted)).measure(config(), "trial-1") == planted


def test_losses_come_back_for_each_seed():
    client = FakeClient()
    found = jobs(client).numerics(config(), seeds=[3, 5], updates=4)
    assert [run.seed for run in found.runs] == [3, 5]
    assert found.runs[0].losses == pytest.approx([1.003, 0.503, 1 / 3 + 0.003, 0.253])
    assert client.jobs[0].kind is JobKind.NUMERICS


def test_a_source_that_dies_before_its_fit_is_told_with_the_last_of_its_output(tmp_path):
    log = tmp_path / "observe.log"
    log.write_text("\n".join(f"line {n}" for n in range(30)) + "\nFatal Python error: Segmentation fault\n")
    planted = Failure(kind=FailureKind.CRASH, message="ended by SIGSEGV in phase setup", log=str(log))
    with pytest.raises(SourceError) as caught:
        jobs(FakeClient(plant=lambda job: JobResult(None, planted, 1.0))).observe()
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "the source did not reach its fit (crash: ended by SIGSEGV in phase setup); the end of its output:"
    )
    assert lines[-1] == "  Fatal Python error: Segmentation fault"
    assert len(lines) == 11


class TooLarge(FakeClient):
    """Running up to the fit takes too much memory; without values of weights too, where `bare` says so."""

    bare = None

    def run(self, job, **limits):
        self.jobs.append(job)
        if job.options.get("abstract"):
            return JobResult(None, self.bare, 1.0) if self.bare else super().run(job, **limits)
        return JobResult(None, Failure(kind=FailureKind.OOM, message="held 2.10 GiB", held_bytes=21 * GIB // 10), 1.0)


def test_what_runs_out_of_memory_before_its_fit_cannot_be_rescued_and_that_is_told():
    client = TooLarge()
    with pytest.raises(NoFeasibleConfiguration) as caught:
        jobs(client).observe()
    message = str(caught.value)
    assert "runs out of memory before its first micro-step" in message
    assert "(held 2.10 GiB); without values for its 1,000 parameters, which take 3.91 KiB (analytic), it does not" in (
        message
    )
    assert "What would fit: more than 2.10 GiB of memory, a smaller model" in message
    assert [job.options.get("abstract") for job in client.jobs][:2] == [None, True]


@pytest.mark.parametrize(
    ("bare", "told"),
    [
        (failure(FailureKind.OOM), "; the weights alone do not cause it, because it also happens while"),
        (failure(FailureKind.TIMEOUT), "(held 2.10 GiB). Accumulation"),
    ],
)
def test_what_takes_the_memory_is_told_only_where_it_is_known(bare, told):
    client = TooLarge()
    client.bare = bare
    with pytest.raises(NoFeasibleConfiguration) as caught:
        jobs(client).observe()
    assert told in str(caught.value)


def test_where_jax_is_missing_nothing_is_claimed_about_weights():
    with pytest.raises(NoFeasibleConfiguration, match=r"\(held 2\.10 GiB\)\. Accumulation"):
        jobs(TooLarge()).with_(backend="torch").observe()


@pytest.mark.parametrize(
    ("here", "usable"),
    [
        (cluster(usable_bytes=8 * GIB), 8 * GIB),
        (cluster(4, usable_bytes=2 * GIB), 8 * GIB),
        (cluster(4, kind="gpu", usable_bytes=2 * GIB), 2 * GIB),
    ],
)
def test_a_training_may_hold_a_processors_memory_or_one_devices(here, usable):
    assert jobs(FakeClient(), here=here).usable_bytes() == usable


KILLED = Failure(kind=FailureKind.CRASH, message="ended by SIGKILL", outside=True)


def in_turn(*answers):
    """A client that gives these answers, then its usual ones."""
    left = iter(answers)
    return FakeClient(plant=lambda job: next(left, None))


def test_what_is_ended_from_outside_is_tried_once_more_and_that_is_told(tmp_path):
    client, told = in_turn(KILLED), []
    one = jobs(client, scratch=tmp_path, notify=told.append)
    assert isinstance(one.measure(config(), "trial-1"), Measurement)
    assert len(client.jobs) == 2
    assert told == ["ended by SIGKILL; it is tried once more"]
    assert client.jobs[0].options["scratch"] != client.jobs[1].options["scratch"]


def test_what_is_ended_from_outside_twice_is_a_failure():
    client = in_turn(KILLED, KILLED)
    found = jobs(client).measure(config(), "trial-1")
    assert (found.outside, found.message) == (True, "ended by SIGKILL; the first try ended from outside too")
    assert len(client.jobs) == 2
    told = explain_failure(found)
    assert isinstance(told, WorkerError)
    assert str(told).startswith("the training was ended from outside (ended by SIGKILL; the first try")


def test_looks_and_losses_are_tried_once_more_too():
    assert len(jobs(in_turn(KILLED)).numerics(config(), seeds=[1], updates=3).runs[0].losses) == 3
    assert jobs(in_turn(KILLED)).observe().parameters > 0


def test_what_ended_by_itself_is_not_tried_again():
    client = in_turn(failure(FailureKind.CRASH))
    assert jobs(client).measure(config(), "trial-1").kind is FailureKind.CRASH
    assert len(client.jobs) == 1


def test_a_source_that_hangs_is_waited_for_once():
    client = in_turn(failure(FailureKind.TIMEOUT, "not finished after 600 s"))
    with pytest.raises(SourceError, match="timeout: not finished after 600 s"):
        jobs(client).observe(abstract=True)
    assert len(client.jobs) == 1


def test_no_room_for_a_temporary_folder_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match=r"no temporary folder can be made: .*; make room, or set TMPDIR"):
        temporary_folder().__enter__()
    with pytest.raises(OutputError, match="no working directory for a trial can be made in"):
        jobs(FakeClient(), scratch=tmp_path / "gone").measure(config(), "trial-1")
