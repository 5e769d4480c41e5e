"""Which configurations a compiler is asked about, and what its answers change. The compiler is made up: its answers are
planted, so that they can be wrong on purpose. Real ones are asked in `worker/test_lower.py`, and at the end here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan import compilers, planfile
from autoplan.errors import HardwareError
from autoplan.jobs import JobKind
from autoplan.plan import Evidence, FailureKind
from cost_models.config import Precision, TrainConfig
from cost_models.hardware import cluster
from tests.autoplan.fake_client import compiled, failure
from tests.autoplan.tuning import BEST, OWN, fake

GIB = 2**30
NAMED = cluster("tpu-v5e-4")


@pytest.fixture
def plan_for(tune, monkeypatch):
    """Tune for four v5e chips whose compiler is made up."""
    monkeypatch.setattr(compilers, "versions", lambda target: {"jax": "0.10.2", "libtpu": "0.0.42"})

    def run(client, **wishes):
        return tune(client, here=NAMED, **{"only": ("batch", "mesh"), **wishes})

    run.events = lambda: tune.events
    return run


def asked(client):
    return [TrainConfig.from_dict(job.options["lowered"]) for job in client.jobs if job.kind is JobKind.LOWER]


def test_the_best_prediction_is_compiled_and_is_the_plan(plan_for):
    client = fake()
    result = plan_for(client)
    plan = result.plan
    assert plan.evidence is Evidence.COMPILED
    assert [config.to_dict() for config in asked(client)] == [plan.config]
    assert plan.compiled.memory.total_bytes == 2**20
    assert [record.outcome for record in plan.trials] == ["compiled"]
    assert plan.trials[0].compiled == plan.compiled
    assert plan.measured is None
    assert plan.predicted["evidence"] == "analytic"


def test_what_the_compiler_finds_too_large_is_rejected_with_its_figures_and_the_next_is_asked(plan_for):
    def compiler(config):
        """Of the local batch of the best prediction more than a chip has; less of smaller ones."""
        return compiled(int(config.batch.local / 256 * 20 * GIB))

    client = fake(own=OWN, compiler=compiler)
    plan = plan_for(client, fix={"mesh.data": "1"}).plan
    assert asked(client)[0].batch.local == 256
    assert plan.config["batch"]["local"] == 128
    assert plan.compiled.memory.total_bytes <= NAMED.chip.usable_memory_bytes * 0.92
    rejected = [one for one in plan.rejected if one.figures.get("evidence") == "compiled"]
    assert [one.config["batch"]["local"] for one in rejected] == [256]
    assert rejected[0].figures["needed_bytes"] == 20 * GIB
    assert rejected[0].reason == "the compiler says that it needs 20.0 GiB of 14.5 GiB a device"
    assert rejected[0].nearest.endswith("would fit")


def test_one_answer_corrects_the_predictions_for_its_like(plan_for):
    """Far beyond the prediction, so that by the correction nothing is left: then what needs least is compiled."""

    def compiler(config):
        return compiled(config.batch.local * GIB)

    client = fake(own=OWN, compiler=compiler)
    plan = plan_for(client, fix={"mesh.data": "1"}).plan
    assert [one.batch.local for one in asked(client)][:2] == [256, 8]
    assert plan.config["batch"]["local"] == 8
    assert plan.evidence is Evidence.COMPILED


def test_a_slower_compiled_program_lets_another_win(plan_for):
    """What was predicted to be best is slow once compiled; its like of another precision is not."""

    def compiler(config):
        slow = config.precision is Precision.FLOAT32
        return compiled(2**20, 1.0 if slow else 1e-4, config.batch.accumulation)

    client = fake(own=BEST, compiler=compiler)
    plan = plan_for(client, only=("precision",)).plan
    assert asked(client)[0].precision is Precision.FLOAT32
    assert plan.config["precision"] == "mixed_bfloat16"
    assert plan.compiled.time["micro_step_seconds"] == 1e-4


def test_no_more_are_compiled_than_asked_for(plan_for):
    def slow(job):
        return failure(FailureKind.TIMEOUT, "slow") if job.kind is JobKind.LOWER else None

    client = fake(own=OWN, plant=slow)
    plan = plan_for(client, witnesses=2).plan
    assert len(asked(client)) == 2
    assert plan.evidence is Evidence.ANALYTIC
    assert plan.compiled is None
    told = [note for note in plan.notes if "could not be compiled (timeout: slow)" in note]
    assert len(told) == 2
    assert any("no compiler stands behind it" in note for note in plan.notes)


def test_a_size_that_the_compiler_does_not_tell_is_no_zero(plan_for):
    def compiler(config):
        if config.batch.local > 64:
            return {"too_large": {"message": "RESOURCE_EXHAUSTED", "needed_bytes": None, "available_bytes": None}}
        return compiled(2**20)

    plan = plan_for(fake(own=OWN, compiler=compiler), fix={"mesh.data": "1"}).plan
    assert plan.config["batch"]["local"] == 64
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
    monkeypatch.setattr(compilers, "versions", lambda target: {"jax": "0.10.2", "libtpu": "0.0.43"})
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
    plan = plan_for(client, witnesses=0).plan
    assert asked(client) == []
    assert plan.evidence is Evidence.ANALYTIC


def test_a_compiler_that_is_not_here_is_told_of_and_does_not_stand_in_the_way(plan_for, monkeypatch):
    def lacking(target):
        raise HardwareError("XLA:TPU is not installed here")

    monkeypatch.setattr(compilers, "versions", lacking)
    plan = plan_for(fake(own=OWN)).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert "no compiler was asked: XLA:TPU is not installed here" in plan.notes
    with pytest.raises(HardwareError, match="not installed here"):
        plan_for(fake(own=OWN), witnesses=3)


def test_what_is_told_on_the_way(plan_for):
    plan_for(fake(own=OWN))
    kinds = [event.kind for event in plan_for.events()]
    assert kinds.count("trial_started") == kinds.count("trial_finished") == 1
    finished = next(event for event in plan_for.events() if event.kind == "trial_finished")
    assert finished.best_number == finished.number == 0


@pytest.mark.parametrize("hardware", ["tpu-v5e-4", "gpu-a100-80gb-x8"])
def test_the_command_ends_with_a_plan_that_the_real_compiler_stands_behind(tmp_path, root, hardware):
    script = root / "tests/models/scripts/mlp.py"
    command = [sys.executable, "-m", "autoplan", "tune", str(script), "--hardware", hardware]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(root))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    plan = planfile.read(tmp_path / "plan.yaml")
    assert plan.evidence is Evidence.COMPILED
    assert 0 < plan.compiled.memory.total_bytes <= plan.hardware.capacity_bytes * 0.92
    assert plan.compiled.time["micro_step_seconds"] > 0
    assert [record.outcome for record in plan.trials][-1] == "compiled"
    assert "measured" not in ran.stdout
    assert planfile.first_line(plan).startswith("Nothing was run for this plan: its figures are compiled, for ")
