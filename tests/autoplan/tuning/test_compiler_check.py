"""Which configurations a compiler is asked about, and what its answers change. The compiler is made up: its answers are
planted, so that they can be wrong on purpose. Real ones are asked in `worker/test_lower.py`, and at the end here."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.errors import HardwareError, NoFeasibleConfiguration, NothingMeasured, StudyError
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind
from autoplan.machine import compiler_packages, this_machine
from autoplan.plan import file
from autoplan.plan.records import Evidence, FailureKind
from autoplan.sources import keras_backend
from autoplan.tuning.trials.study import Study
from cost_models.config import Precision, TrainConfig
from cost_models.hardware.lookup import cluster
from tests.builders.fake_client import compiled, failure
from tests.builders.slow import slow
from tests.builders.tune_requests import BEST, OWN, fake
from tests.builders.workloads import GIB

NAMED = cluster("tpu-v5e-4")


@pytest.fixture
def plan_for(tune, monkeypatch):
    """Tune for four v5e chips whose compiler is made up."""
    monkeypatch.setattr(compiler_packages, "versions", lambda target: {"jax": "0.10.2", "libtpu": "0.0.42"})

    def run(client, **wishes):
        return tune(client, **{"here": NAMED, "only": ("batch", "mesh"), **wishes})

    run.events = lambda: tune.events
    return run


def asked(client):
    return [TrainConfig.from_dict(job.options["lowered"]) for job in client.jobs if job.kind is JobKind.LOWER]


def test_the_best_prediction_is_compiled_and_is_the_plan(plan_for):
    client = fake()
    result = plan_for(client)
    plan = result.plan
    assert plan.evidence is Evidence.COMPILED
    assert asked(client) == [plan.config]
    assert plan.compiled.memory.total_bytes == 2**20
    assert [record.outcome for record in plan.trials] == ["compiled"]
    assert plan.trials[0].compiled == plan.compiled
    assert plan.measured is None
    assert plan.predicted.to_dict()["evidence"] == "analytic"


def test_what_the_compiler_finds_too_large_is_rejected_with_its_figures_and_the_next_is_asked(plan_for):
    def compiler(config):
        """Of the local batch of the best prediction more than a chip has; less of smaller ones."""
        return compiled(int(config.batch.local / 256 * 20 * GIB))

    client = fake(own=OWN, compiler=compiler)
    plan = plan_for(client, fix={"mesh.data": "1"}).plan
    assert asked(client)[0].batch.local == 256
    assert plan.config.batch.local == 128
    assert plan.compiled.memory.total_bytes <= NAMED.chip.usable_memory_bytes * 0.92
    rejected = [one for one in plan.rejected if one.figures.get("evidence") == "compiled"]
    assert [one.config.batch.local for one in rejected] == [256]
    next_batch = 4 * 64 * 256
    assert rejected[0].figures["needed_bytes"] == 20 * GIB + next_batch
    assert rejected[0].reason == (
        "the compiler needs 20.0 GiB, and fit 64.0 KiB for the next batch, of 14.5 GiB a device"
    )
    assert plan.compiled.memory.other_batches_bytes == plan.predicted.memory.other_batches == next_batch // 2
    assert rejected[0].nearest.endswith("would fit")


def test_one_answer_corrects_the_predictions_for_its_like(plan_for):
    """Far beyond the prediction, so that by the correction nothing is left: then what needs least is compiled."""

    def compiler(config):
        return compiled(config.batch.local * GIB)

    client = fake(own=OWN, compiler=compiler)
    plan = plan_for(client, fix={"mesh.data": "1"}).plan
    assert [one.batch.local for one in asked(client)][:2] == [256, 1]
    assert plan.config.batch.local == 1
    assert plan.evidence is Evidence.COMPILED


def test_a_slower_compiled_program_lets_another_win(plan_for):
    """What was predicted to be best is slow once compiled; its like of another precision is not."""

    def compiler(config):
        slow = config.precision is Precision.FLOAT32
        return compiled(2**20, 1.0 if slow else 1e-4, config.batch.accumulation)

    client = fake(own=BEST, compiler=compiler)
    plan = plan_for(client, only=("precision",)).plan
    assert asked(client)[0].precision is Precision.FLOAT32
    assert plan.config.precision == "mixed_bfloat16"
    assert plan.compiled.time.micro_step_seconds == 1e-4


def test_no_more_are_compiled_than_asked_for(plan_for):
    def slow(job):
        return failure(FailureKind.TIMEOUT, "slow") if job.kind is JobKind.LOWER else None

    client = fake(own=OWN, plant=slow)
    plan = plan_for(client, compile_count=2).plan
    assert len(asked(client)) == 2
    assert plan.evidence is Evidence.ANALYTIC
    assert plan.compiled is None
    told = [note for note in plan.notes if "could not be compiled (timeout: slow)" in note]
    assert len(told) == 2
    assert any("so the plan was not compiled" in note for note in plan.notes)


def test_a_size_that_the_compiler_does_not_tell_is_no_zero(plan_for):
    def compiler(config):
        if config.batch.local > 64:
            return {"too_large": {"message": "RESOURCE_EXHAUSTED", "needed_bytes": None, "available_bytes": None}}
        return compiled(2**20)

    plan = plan_for(fake(own=OWN, compiler=compiler), fix={"mesh.data": "1"}).plan
    assert plan.config.batch.local == 64
    told = [one for one in plan.rejected if one.figures.get("evidence") == "compiled"]
    assert told[0].figures["needed_bytes"] is None
    assert "not known" in told[0].reason


def test_nothing_is_compiled_twice(plan_for, tmp_path):
    study = str(tmp_path / "study.db")
    first = fake(own=OWN)
    plan = plan_for(first, study=study).plan
    again = fake(own=OWN)
    assert plan_for(again, study=study).plan.config == plan.config
    assert (len(asked(first)), len(asked(again))) == (1, 0)


def test_another_version_of_the_compiler_is_another_study(plan_for, tmp_path, monkeypatch):
    plan_for(fake(own=OWN), study=str(tmp_path / "study.db"))
    monkeypatch.setattr(compiler_packages, "versions", lambda target: {"jax": "0.10.2", "libtpu": "0.0.43"})
    with pytest.raises(Exception, match="libtpu"):
        plan_for(fake(own=OWN), study=str(tmp_path / "study.db"))


def test_interrupted_it_plans_from_what_was_compiled(plan_for):
    seen = []

    def compiler(config):
        seen.append(config)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return compiled(20 * GIB) if config.batch.local == 256 else compiled(2**20)

    result = plan_for(fake(own=OWN, compiler=compiler), fix={"mesh.data": "1"})
    assert result.interrupted
    assert result.plan.evidence is Evidence.ANALYTIC


def test_none_is_asked_where_none_shall_be(plan_for):
    client = fake(own=OWN)
    plan = plan_for(client, compile_count=0).plan
    assert asked(client) == []
    assert plan.evidence is Evidence.ANALYTIC


def test_a_compiler_that_is_not_here_is_told_of_and_does_not_stand_in_the_way(plan_for, monkeypatch):
    def lacking(target):
        raise HardwareError("XLA:TPU is not installed here")

    monkeypatch.setattr(compiler_packages, "versions", lacking)
    plan = plan_for(fake(own=OWN)).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert "nothing was compiled: XLA:TPU is not installed here" in plan.notes
    with pytest.raises(HardwareError, match="not installed here"):
        plan_for(fake(own=OWN), compile_count=3)


def test_what_is_told_on_the_way(plan_for):
    plan_for(fake(own=OWN))
    kinds = [event.kind for event in plan_for.events()]
    assert kinds.count("trial_started") == kinds.count("trial_finished") == 1
    finished = next(event for event in plan_for.events() if event.kind == "trial_finished")
    assert finished.best_number == finished.number == 0


def test_a_plan_is_never_what_the_compiler_found_too_large(plan_for):
    """Also where no more may be compiled: what is left stands without a compiler behind it."""

    def compiler(config):
        return compiled(20 * GIB) if config.batch.local == 256 else compiled(2**20)

    plan = plan_for(fake(own=OWN, compiler=compiler), compile_count=1, fix={"mesh.data": "1"}).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert plan.config.batch.local < 256
    assert plan.config not in [one.config for one in plan.rejected if one.figures.get("evidence") == "compiled"]


def test_where_the_compiler_finds_everything_too_large_nothing_is_feasible(plan_for):
    client = fake(own=OWN, compiler=lambda config: compiled((16 + config.batch.local) * GIB))
    with pytest.raises(
        NoFeasibleConfiguration,
        match=r"needs 17.0 GiB, and fit \d+ B for the next batch, of 14.5 GiB a device",
    ):
        plan_for(client, compile_count=99, fix={"mesh.data": "1"})


def test_a_compilation_that_the_budget_cut_short_may_be_asked_for_again(plan_for, tmp_path, monkeypatch):
    study = str(tmp_path / "study.db")

    def cut_short(job):
        if job.kind is not JobKind.LOWER:
            return None
        monkeypatch.setattr(Clock, "allows", lambda clock, seconds: False)
        return failure(FailureKind.TIMEOUT, "not finished after 3 s")

    allows = Clock.allows
    plan = plan_for(fake(own=OWN, plant=cut_short), study=study).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert plan.trials == []
    monkeypatch.setattr(Clock, "allows", allows)
    again = plan_for(fake(own=OWN), study=study).plan
    assert (again.evidence, again.config) == (Evidence.COMPILED, plan.config)


def test_memory_that_runs_out_here_says_nothing_of_the_device(plan_for, tmp_path):
    """The compiler's own process was ended: the configuration is not too large for that, and is asked again."""
    study = str(tmp_path / "study.db")

    def swollen(job):
        return failure(FailureKind.COMPILE_OOM, "held 13.0 GiB of 12.0 GiB") if job.kind is JobKind.LOWER else None

    plan = plan_for(fake(own=OWN, plant=swollen), study=study, compile_count=1).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert [one for one in plan.rejected if one.figures.get("evidence") == "compiled"] == []
    assert any("compiling takes more memory than this machine has (held 13.0 GiB" in note for note in plan.notes)
    again = plan_for(fake(own=OWN), study=study, compile_count=1).plan
    assert (again.evidence, again.config) == (Evidence.COMPILED, plan.config)


def test_a_study_that_cannot_be_stored_ends_with_what_was_compiled(plan_for, monkeypatch):
    begun, original = [], Study.begin

    def begin(study, config):
        begun.append(config)
        if len(begun) == 2:
            raise StudyError("the study cannot be written: the disk is full")
        original(study, config)

    monkeypatch.setattr(Study, "begin", begin)
    plan = plan_for(fake(own=OWN, compiler=lambda config: compiled(20 * GIB)), fix={"mesh.data": "1"}).plan
    assert [record.outcome for record in plan.trials] == ["compiled"]
    assert any("the study cannot be stored" in note for note in plan.notes)


def test_without_jit_compile_no_compiler_is_asked(plan_for):
    client = fake(own=OWN)
    plan = plan_for(client, fix={"jit_compile": "false"}).plan
    assert asked(client) == []
    assert "nothing was compiled: without jit_compile there is no compiled program" in plan.notes
    with pytest.raises(HardwareError, match="without jit_compile"):
        plan_for(fake(own=OWN), fix={"jit_compile": "false"}, compile_count=2)


def test_a_compiler_that_does_not_take_the_hardware_does_not_stand_in_the_way(plan_for):
    def refuse(config):
        raise HardwareError("XLA:TPU v5e:2x2 is not taken by the compiler that is installed here")

    plan = plan_for(fake(own=OWN, compiler=refuse)).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert any(note.startswith("nothing was compiled: XLA:TPU v5e:2x2 is not taken") for note in plan.notes)
    with pytest.raises(HardwareError, match="is not taken"):
        plan_for(fake(own=OWN, compiler=refuse), compile_count=2)


def test_what_another_backend_would_run_is_not_compiled(plan_for, monkeypatch):
    """XLA compiles what Keras runs on JAX: no compiler stands behind a plan for PyTorch."""
    monkeypatch.setattr(keras_backend, "installed", lambda name: name in ("jax", "torch"))
    client = fake(own=OWN)
    plan = plan_for(client, backend="auto", fix={"mesh.data": "1"}).plan
    assert {config.backend for config in asked(client)} == {"jax"}
    assert (plan.evidence, plan.config.backend) == (Evidence.COMPILED, "jax")


def test_where_no_estimate_is_sure_the_compiler_decides(plan_for):
    """A chip with less than the upper end of what is estimated, and more than the lower one."""
    wishes = {"only": ("steps_per_execution",), "fix": {"mesh.data": "1"}}
    memory = plan_for(fake(own=OWN), compile_count=0, **wishes).plan.predicted.memory
    low, high = (end - memory.other_batches for end in (memory.total_low, memory.total_high))  # of the program
    chip = dataclasses.replace(NAMED.chip, usable_memory_bytes=int((memory.total_low + memory.total_high) / 2 / 0.92))
    small = dataclasses.replace(NAMED, chip=chip)
    plan = plan_for(fake(own=OWN, compiler=lambda config: compiled(low)), here=small, **wishes).plan
    assert (plan.evidence, plan.compiled.memory.total_bytes) == (Evidence.COMPILED, low)
    with pytest.raises(NoFeasibleConfiguration, match="none of the compiled configurations fits"):
        plan_for(fake(own=OWN, compiler=lambda config: compiled(high)), here=small, **wishes)
    with pytest.raises(NoFeasibleConfiguration, match="none of 1 configurations fits"):
        plan_for(fake(own=OWN), here=small, compile_count=0, **wishes)


def test_two_are_compiled_side_by_side_where_there_are_cores(plan_for, monkeypatch, tmp_path):
    monkeypatch.setattr(this_machine, "cpu_count", lambda: 4)
    study = str(tmp_path / "study.db")
    client = fake(own=OWN, compiler=lambda config: compiled(int(config.batch.local / 256 * 40 * GIB)))
    plan = plan_for(client, fix={"mesh.data": "1"}, study=study).plan
    told = [event for event in plan_for.events() if event.kind in ("trial_started", "trial_finished")]
    assert [event.kind for event in told[:4]] == ["trial_started"] * 2 + ["trial_finished"] * 2
    assert [event.config for event in told[:2]] == [event.config for event in told[2:4]]
    assert [event.number for event in told[:4]] == [0, 1, 0, 1]
    assert [record.number for record in plan.trials] == list(range(len(plan.trials)))
    again = fake(own=OWN)
    assert plan_for(again, fix={"mesh.data": "1"}, study=study).plan.trials == plan.trials
    assert asked(again) == []


@pytest.mark.parametrize("name", ["tpu-v5e-4", *slow("gpu-a100-80gb-x8")])
def test_the_command_ends_with_a_plan_that_the_real_compiler_stands_behind(tmp_path, root, name):
    script = root / "tests/models/scripts/mlp.py"
    command = [sys.executable, "-m", "autoplan", "tune", str(script), "--hardware", name]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(root))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    plan = file.read(tmp_path / "plan.yaml")
    assert plan.evidence is Evidence.COMPILED
    assert 0 < plan.compiled.memory.total_bytes <= plan.hardware.capacity_bytes * 0.92
    assert plan.compiled.time.micro_step_seconds > 0
    assert [record.outcome for record in plan.trials][-1] == "compiled"
    assert "measured" not in ran.stdout
    assert file.first_line(plan).startswith("Nothing was run for this plan: its figures are compiled, for ")


def test_a_budget_that_ends_while_the_training_is_looked_at_is_told_as_such(plan_for):
    def slow(job):
        return failure(FailureKind.TIMEOUT, "not finished after 1 s") if job.kind is JobKind.TRACE else None

    with pytest.raises(NothingMeasured, match="ended while the training was inspected"):
        plan_for(fake(own=OWN, plant=slow), budget_seconds=0.5)


def test_what_predictions_do_not_tell_apart_stands_by_how_little_it_changes(plan_for):
    """Launches cost more than arithmetic here: another precision would be a gain on paper alone."""
    client = fake(own=BEST)
    plan = plan_for(client, only=("precision",)).plan
    assert plan.config == BEST
    assert [one.precision for one in asked(client)] == [Precision.FLOAT32]


def test_a_peak_above_the_total_is_what_must_fit(plan_for):
    def compiler(config):
        said = compiled(2**20)
        said["evidence"]["memory"]["peak_bytes"] = config.batch.local * 2**27
        return said

    plan = plan_for(fake(own=OWN, compiler=compiler), fix={"mesh.data": "1"}).plan
    assert plan.config.batch.local <= 64
    assert plan.compiled.memory.must_fit_bytes <= NAMED.chip.usable_memory_bytes * 0.92
