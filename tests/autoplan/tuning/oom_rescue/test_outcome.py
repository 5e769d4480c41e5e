from __future__ import annotations

import pytest

from autoplan import planner
from autoplan.errors import NoFeasibleConfiguration, StudyError
from autoplan.jobs import workers
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, SplitProbe
from autoplan.plan import file
from autoplan.plan.records import Evidence, FailureKind
from autoplan.sources import source
from autoplan.tuning.oom_rescue.outcome import described_changes, nothing_runs, rescue
from autoplan.tuning.oom_rescue.search import RescueSearch, needs
from autoplan.tuning.request import TuneRequest
from tests.builders.fake_client import FakeClient, failure, micro_step_seconds
from tests.builders.observations import GIB, cluster, config, observation
from tests.builders.trial_outcomes import estimates, failed, ran

OWN = config(64)
BF16 = {"precision": "mixed_bfloat16"}
NEEDS = {OWN: 1.9, config(32, 2): 1.05, config(16, 4): 0.6, config(8, 8): 0.4, config(64, **BF16): 1.0}


COMPARED = "an update of 64 rows was compared with its halves"


def rescued(runs, known, *, legal=None, kind=FailureKind.OOM, **facts):
    """The rescue where `runs(config)` says what runs, and the search as it then stands."""
    found = estimates(known)
    search = RescueSearch(OWN, legal or known, needs(OWN, legal or known, found))
    while (one := search.next()) is not None:
        search.add(ran(one) if runs(one) else failed(one, kind, held=1.01))
    return (
        rescue(search, failed(OWN, held=1.02), found, usable_bytes=GIB, observation=observation(**facts)),
        search,
        found,
    )


def test_the_least_change_is_told_with_what_was_not_enough():
    found, _, _ = rescued(lambda one: one.batch.global_size <= 16, NEEDS)
    assert (found.config, found.changed) == (config(16, 4), ["accumulation 4"])
    assert (found.baseline_bytes, found.usable_bytes) == (int(1.02 * GIB), GIB)
    assert found.because == (
        "accumulation keeps the effective batch; whether it keeps the training was not compared; "
        "smaller changes are not enough: "
        "accumulation 2 ran out of memory at 1.01 GiB"
    )
    assert [(rung.changed, rung.outcome, rung.evidence) for rung in found.tried] == [
        (["accumulation 4"], "runs", Evidence.MEASURED),
        (["accumulation 2"], "out_of_memory", Evidence.MEASURED),
    ]
    assert found.tried[1].needed_bytes == int(1.01 * GIB)
    assert found.tried[1].reason == "too large"


def test_what_estimates_rule_out_is_told_as_analytic():
    known = {OWN: 4.0, config(32, 2): 2.0, config(16, 4): 1.5, config(64, **BF16): 0.9}
    found, _, _ = rescued(lambda one: True, known)
    assert found.changed == ["precision mixed_bfloat16"]
    assert found.because.endswith("smaller changes are not enough: 2 more are estimated not to run or were passed over")
    (ran_, passed) = found.tried
    assert ran_.outcome == "runs"
    assert (passed.changed, passed.outcome, passed.evidence) == (["accumulation 4"], "passed_over", Evidence.ANALYTIC)
    assert passed.reason == "estimated to need more memory than there is"
    assert passed.needed_bytes == int(1.5 * 0.9 * GIB)


def test_what_is_not_legal_is_said():
    found, _, _ = rescued(lambda one: True, {OWN: 1.9, config(64, **BF16): 0.9})
    assert found.because == (
        "another precision keeps every setting of the training and rounds its numbers differently; "
        "no other accumulation is legal here; there is no smaller change"
    )
    held = SplitProbe(split="differs", split_reason="the loss is a sum")
    found, _, _ = rescued(lambda one: True, {OWN: 1.9, config(64, **BF16): 0.9}, probe=held)
    assert "; no other accumulation is legal here, because the loss is a sum; " in found.because


def test_the_training_is_kept_only_as_far_as_it_was_compared():
    runs = lambda one: one.batch.global_size <= 16  # noqa: E731
    kept = "accumulation keeps the effective batch, and with it the training, as far as it was compared"
    found, _, _ = rescued(runs, NEEDS, probe=SplitProbe(split="same", compared=COMPARED))
    assert found.because.startswith(f"{kept} ({COMPARED}); ")
    drawn = SplitProbe(split="same", compared=COMPARED, random_draws=["drop (Dropout)"])
    found, _, _ = rescued(runs, NEEDS, probe=drawn)
    assert found.because.startswith(f"{kept}, apart from random numbers ({COMPARED}); ")


def test_batch_normalization_is_said_to_differ():
    found, _, _ = rescued(lambda one: True, NEEDS, batch_norm=True)
    assert found.because.endswith(
        "BatchNormalization takes its statistics over 32 samples instead of 64; "
        "no configuration with this change avoids that"
    )


def test_nothing_is_rescued_where_nothing_runs_and_that_is_told_with_figures():
    found, search, known = rescued(lambda one: False, {OWN: 1.9, config(32, 2): 1.05, config(16, 4): 0.95})
    assert found is None
    told = nothing_runs(search, failed(OWN, held=1.02), known, GIB)
    assert told == (
        "no configuration of this training runs in the available memory: the baseline (your own "
        "configuration) ran out of memory at "
        "1.02 GiB of 1.00 GiB; accumulation 4 ran out of memory at 1.01 GiB; all others are estimated to need no "
        "less. The least estimate for any of them is 973 MiB (analytic; float32, batch 16, "
        "accumulation 4). What would fit: "
        "more than 1.01 GiB of memory, a smaller model, fewer restrictions (--fix, --only), or a smaller effective "
        "batch (--effective-batch 1..64), which is another training"
    )


def test_other_failures_are_told_by_their_kind():
    _, search, known = rescued(lambda one: False, {OWN: 1.9, config(16, 4): 0.95}, kind=FailureKind.UNSUPPORTED)
    told = nothing_runs(search, failed(OWN), known, GIB)
    assert (
        "the baseline (your own configuration) ran out of memory; accumulation 4 failed (unsupported: too large)"
        in told
    )
    assert "What would fit: more memory, a smaller model" in told


def test_changes_are_spoken_with_what_they_make_of_the_batch():
    assert described_changes(OWN, config(16, 4)) == "accumulation 4 (batch 64 → 16)"
    assert described_changes(OWN, config(64, **BF16)) == "precision mixed_bfloat16"
    assert described_changes(config(8, 2), config(4, 4)) == "accumulation 4 (batch 8 → 4)"
    assert described_changes(OWN, config(16)) == "global batch 16 (batch 64 → 16)"


# A whole tuning on the made-up machine


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Tune a script's batch on the made-up machine."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import keras\nkeras.Model().fit()\n")
    monkeypatch.setattr(workers.Workers, "cluster", lambda *_: cluster())

    def run(client, **wishes):
        monkeypatch.setattr(workers, "Client", client)
        wishes = {"study": "sqlite:///:memory:", "only": ("batch",), "trials": 8} | wishes
        request = TuneRequest(
            source=source.resolve(str(script)), backend="jax", output=tmp_path / "plan.yaml", **wishes
        )
        return planner.tune(request).plan

    return run


def too_large_from(size):
    """Plant that measuring a global batch of so many runs out of memory."""

    def plant(job):
        too_large = job.config and job.config.batch.global_size >= size
        return failure() if job.kind is JobKind.MEASURE and too_large else None

    return plant


def test_a_baseline_that_runs_out_of_memory_gives_way_to_the_least_change_that_runs(tune, tmp_path):
    own = config(256)
    plan = tune(FakeClient(observation(own), plant=too_large_from(128)))
    assert plan.baseline.failure.kind is FailureKind.OOM
    assert plan.baseline.measured is None
    assert plan.rescue.config == config(64, 4)
    assert plan.rescue.changed == ["accumulation 4"]
    assert "accumulation 2 ran out of memory" in plan.rescue.because
    assert plan.config == config(64, 4)
    assert plan.verification.speedup is None
    assert (
        plan.notes[0]
        == "no trial was faster than the smallest change that runs: the plan is the smallest change that runs"
    )
    assert file.read(tmp_path / "plan.yaml").rescue == plan.rescue
    assert [record.config.batch.global_size for record in plan.trials if record.failure] == [256, 128]


def test_a_faster_one_than_the_least_change_is_verified_without_a_speed_up_over_the_baseline(tune):
    own = config(256)
    seconds = lambda one: 0.001 if one == config(32, 8) else micro_step_seconds(one)  # noqa: E731
    plan = tune(FakeClient(observation(own), plant=too_large_from(256), seconds=seconds))
    assert plan.config == config(32, 8)
    assert plan.rescue.config == config(128, 2)
    assert (plan.verification.speedup, plan.verification.faster) == (None, True)
    assert (
        "times as fast as float32, batch 128, accumulation 2, the smallest change that runs"
        in plan.verification.numerics_detail
    )
    assert "was shown to be faster than the smallest change that runs" in plan.notes[0]


def test_when_nothing_runs_for_want_of_memory_that_is_the_answer(tune):
    with pytest.raises(NoFeasibleConfiguration, match="no configuration of this training runs in the available memory"):
        tune(FakeClient(plant=too_large_from(1)))


def test_a_limit_on_memory_is_the_hardwares_and_makes_another_study(tune):
    limit = 2**30
    client = FakeClient()
    plan = tune(client, memory_limit_bytes=limit, study="one", trials=2)
    assert (plan.hardware.capacity_bytes, plan.hardware.memory_limit_bytes) == (limit, limit)
    assert (
        "memory was limited to 1.00 GiB (--memory-limit): a trial whose processes used more was stopped" in plan.notes
    )
    with pytest.raises(StudyError, match=r"memory: 1\.00 GiB -> 8\.00 GiB"):
        tune(client, study="one", trials=2)


# Real scripts under a real limit: the true peaks are measured first, and each limit lies between two of them.

WIDE = """
import os, sys
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(4096, 4)).astype("float32")
h = inputs = keras.Input((4,))
for _ in range(2):
    h = keras.layers.Dense(4)(keras.layers.Dense(8192, activation="relu")(h))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(h))
model.compile("adam", "mse")
model.fit(x, x[:, :1], batch_size=2048, epochs=2, verbose=0)
"""
QUICK = {"groups": 3, "group_seconds": 0.05}
BASELINE = config(2048)
PEAKS = {
    "own": BASELINE,
    "accumulation 2": config(1024, 2),
    "accumulation 8": config(256, 8),
    "mixed_bfloat16": config(2048, **BF16),
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A script whose activations are most of its memory."""
    script = tmp_path_factory.mktemp("wide") / "train.py"
    script.write_text(WIDE)
    return source.resolve(str(script))


@pytest.fixture(scope="module")
def peaks(wide):
    """Bytes that a process of the script holds: at its fit, and at most under each configuration."""
    with Client("jax") as client:

        def run(kind, own=BASELINE):
            plain = {"config": own, "baseline": BASELINE} if kind is JobKind.MEASURE else {}
            return client.run(Job(kind=kind, source=wide, options=QUICK, **plain), time_limit_seconds=300)

        at_fit = run(JobKind.OBSERVE).value["process_bytes"]
        found = {name: run(JobKind.MEASURE, own).peak_bytes for name, own in PEAKS.items()}
    return {"at its fit": at_fit, **found}


def between(peaks, low, high):
    """A limit under which `low` runs and `high` does not, with room for noise on both sides."""
    assert peaks[high] - peaks[low] > 30 * 2**20, peaks
    return (peaks[low] + peaks[high]) // 2


@pytest.fixture
def tune_wide(wide, tmp_path, monkeypatch):
    """Tune the script under a limit, as `autoplan tune --memory-limit` does; nothing is sought beyond the rescue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoplan.tuning.trials.runner.MEASURED", QUICK)
    monkeypatch.setattr("autoplan.tuning.verification.verifier.PAIRS", 1)

    def run(limit, **wishes):
        output = tmp_path / "plan.yaml"
        wishes = {"only": ("batch",), "trials": 2} | wishes
        planner.tune(TuneRequest(source=wide, backend="jax", memory_limit_bytes=limit, output=output, **wishes))
        return file.read(output)

    return run


def test_a_real_script_is_rescued_by_the_least_accumulation_that_runs(tune_wide, peaks):
    # About what accumulation 4 takes, so that may be the least or just not enough.
    limit = between(peaks, "accumulation 8", "accumulation 2")
    plan = tune_wide(limit)
    assert plan.baseline.failure.out_of_memory
    assert plan.rescue.baseline_bytes > limit == plan.rescue.usable_bytes == plan.hardware.memory_limit_bytes
    assert plan.rescue.changed in (["accumulation 4"], ["accumulation 8"])
    outcomes = {rung.changed[0]: rung.outcome for rung in plan.rescue.tried}
    assert outcomes[plan.rescue.changed[0]] == "runs"
    assert {outcomes.get("accumulation 2"), outcomes.get("accumulation 4")} & {"out_of_memory", "passed_over"}
    assert sum(rung.evidence is Evidence.MEASURED for rung in plan.rescue.tried) <= 6
    batch = plan.config.batch
    assert (batch.effective, batch.accumulation >= 4) == (2048, True)
    assert plan.measured is not None
    assert plan.verification.speedup is None


@pytest.mark.slow
def test_where_accumulation_is_pinned_another_precision_is_the_rescue(tune_wide, peaks):
    plan = tune_wide(
        between(peaks, "mixed_bfloat16", "own"), only=("precision", "batch"), fix={"accumulation": "1"}, trials=2
    )
    assert plan.rescue.config == config(2048, **BF16)
    assert "no other accumulation is legal here" in plan.rescue.because


@pytest.mark.slow
def test_where_nothing_runs_the_least_need_is_told_and_the_exit_code_is_3(tune_wide, peaks):
    """Compiling alone takes more than this limit leaves, whatever the micro-batch."""
    with pytest.raises(NoFeasibleConfiguration) as caught:
        tune_wide(peaks["at its fit"] + 2**22)
    assert caught.value.exit_code == 3
    assert "What would fit: " in str(caught.value)
