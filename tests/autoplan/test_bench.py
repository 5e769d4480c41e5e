from __future__ import annotations

import pytest

from autoplan.bench import LONGEST_LIMIT_SECONDS, PATIENCE, SHORTEST_LIMIT_SECONDS, Bench, Clock, explain_failure
from autoplan.errors import SourceError
from autoplan.jobs import JobKind, JobResult, SourceSpec
from autoplan.plan import Failure, FailureKind, Measurement
from tests.autoplan.facts import GIB, cluster, config
from tests.autoplan.fake_client import FakeClient, failure

SOURCE = SourceSpec(kind="script", path="train.py", sha256="0" * 64)


class Limits(FakeClient):
    """Keeps the limits that each job was given."""

    def run(self, job, **limits):
        self.limits = limits
        return super().run(job, **limits)


def bench(client, *, budget=None, here=None, **fields):
    return Bench(client, SOURCE, "jax", here or cluster(), Clock.start(budget), **fields)


def test_a_clock_without_a_budget_never_ends():
    clock = Clock.start(None)
    assert clock.left() is None
    assert clock.allows(1e9)


def test_a_clock_counts_down_and_not_below_zero(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("autoplan.bench.time.monotonic", lambda: now[0])
    clock = Clock.start(60.0)
    now[0] = 140.0
    assert (clock.left(), clock.allows(20.0), clock.allows(20.1)) == (20.0, True, False)
    now[0] = 1000.0
    assert clock.left() == 0.0


@pytest.mark.parametrize(
    ("trial_seconds", "limit"),
    [(1.0, SHORTEST_LIMIT_SECONDS), (100.0, PATIENCE * 100.0), (1e6, LONGEST_LIMIT_SECONDS)],
)
def test_limits_follow_from_the_baselines_trial(trial_seconds, limit):
    client = Limits()
    bench(client).patient(trial_seconds).measure(config(), "trial-1")
    assert client.limits["time_limit_seconds"] == limit


def test_no_job_outlives_the_budget(monkeypatch):
    monkeypatch.setattr("autoplan.bench.time.monotonic", lambda: 0.0)
    client = Limits()
    bench(client, budget=7.0).measure(config(), "trial-1")
    assert client.limits["time_limit_seconds"] == 7.0


def test_a_timeout_at_the_end_of_the_budget_says_nothing_of_the_configuration(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("autoplan.bench.time.monotonic", lambda: now[0])
    one = bench(FakeClient(), budget=60.0)
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
    bench(client, here=here).measure(config(), "trial-1")
    assert client.limits["memory_limit_bytes"] == limit


def test_jobs_carry_configuration_baseline_and_simulated_devices():
    client = FakeClient()
    own = config(32)
    bench(client, here=cluster(4), baseline=own).measure(config(64, mesh={"data": 4}), "trial-1", options={"groups": 2})
    (job,) = client.jobs
    assert job.config == config(64, mesh={"data": 4}).to_dict()
    assert job.baseline == own.to_dict()
    assert (job.devices, job.backend, job.options) == (4, "jax", {"groups": 2})


def test_a_measurement_or_a_failure_comes_back():
    assert isinstance(bench(FakeClient()).measure(config(), "trial-1"), Measurement)
    planted = failure()
    assert bench(FakeClient(plant=lambda job: planted)).measure(config(), "trial-1") == planted


def test_losses_come_back_for_a_seed():
    client = FakeClient()
    losses = bench(client).numerics(config(), seed=3, updates=4)
    assert losses == pytest.approx([1.003, 0.503, 1 / 3 + 0.003, 0.253])
    assert client.jobs[0].kind is JobKind.NUMERICS


def test_a_source_that_dies_before_its_fit_is_told_with_the_last_of_its_output(tmp_path):
    log = tmp_path / "observe.log"
    log.write_text("\n".join(f"line {n}" for n in range(30)) + "\nFatal Python error: Segmentation fault\n")
    planted = Failure(kind=FailureKind.CRASH, message="ended by SIGSEGV in phase setup", log=str(log))
    with pytest.raises(SourceError) as caught:
        bench(FakeClient(plant=lambda job: JobResult(None, planted, 1.0))).observe()
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "the source did not get to its fit (crash: ended by SIGSEGV in phase setup); the last of its output:"
    )
    assert lines[-1] == "  Fatal Python error: Segmentation fault"
    assert len(lines) == 11


def test_a_training_that_fails_by_itself_is_told_with_where_its_output_is():
    told = str(explain_failure(Failure(kind=FailureKind.NAN, message="the loss is nan", log=".autoplan/x/trial-0.log")))
    assert told == (
        "the training fails as it is (nan: the loss is nan); its output is in .autoplan/x/trial-0.log. "
        "Make it run by itself, then tune it"
    )


def test_a_source_that_can_run_only_once_in_a_folder_is_told_of_scratch():
    error = "train.py failed by itself:\nFileExistsError: [Errno 17] File exists: 'data'"
    told = str(explain_failure(Failure(kind=FailureKind.CRASH, message=error)))
    assert told.startswith(f"{error}\nIt got to its fit when it was first looked at")
    assert told.endswith("--scratch gives each an empty working directory")
