"""Answers of a compile job: evidence, a program that is too large, a rejection."""

from types import SimpleNamespace

import numpy as np
import pytest

from autoplan.runtime.data import data_facts
from autoplan.worker import aot_compile, compile_job
from cost_models.hardware.compile_targets import compiler_target
from cost_models.hardware.lookup import cluster
from tests.builders.configs import local_config
from tests.builders.hlo_texts import program

ARGUMENTS = {"x": np.zeros((64, 3), "float32"), "y": np.zeros((64, 1), "float32"), "batch_size": 8}
CPU = cluster("cpu")
OPTIONS = {
    "target": compiler_target(CPU).to_dict(),
    "cluster": CPU.to_dict(),
    "lowered": local_config(8).to_dict(),
    "versions": {"jax": "1"},
}


def answered(monkeypatch, outcome):
    """Return the answer for this outcome of the compiler, the phases, and the arguments of the compiler."""
    phases, asked = [], []

    def compiled(model, batch, config, target, platform, versions):
        asked.append((config, target.platform, str(platform), versions))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(aot_compile, "compile_train_step", compiled)
    facts = data_facts.describe(ARGUMENTS)
    return compile_job.compile_fit(None, ARGUMENTS, facts, OPTIONS, phases.append), phases, asked


class Evidence(SimpleNamespace):
    """Evidence of a compiler whose updates can be read."""

    def model_copy(self, update):
        return Evidence(**vars(self) | update)

    def model_dump(self, mode):
        return vars(self)


def test_evidence_has_the_time_the_collectives_and_the_unknown_operations_of_the_program(monkeypatch):
    text = program("%a = f32[64] parameter(0)\nROOT %r = f32[64] quantum-sort(%a)")
    answer, phases, asked = answered(monkeypatch, SimpleNamespace(text=text, evidence=Evidence()))
    evidence = answer["evidence"]
    assert phases == ["compile", "read"]
    assert asked == [(local_config(8), "cpu", "cpu", {"jax": "1"})]
    assert evidence["collectives"] == []
    assert [op["primitive"] for op in evidence["unknown_ops"]] == ["quantum-sort"]
    assert evidence["time"].micro_step_seconds > 0


def test_a_text_that_cannot_be_read_leaves_the_compilers_own_figures_with_a_note(monkeypatch):
    answer, _, _ = answered(monkeypatch, SimpleNamespace(text="no HLO", evidence=Evidence(total=1)))
    (note,) = answer["evidence"]["notes"]
    assert note.startswith("the compiled program could not be read: this is no compiled HLO")
    assert answer["evidence"]["total"] == 1


def test_a_program_that_does_not_fit_is_an_answer_with_its_bytes(monkeypatch):
    too_large = aot_compile.ProgramTooLarge("needs more", 2**34, 2**33)
    answer, phases, _ = answered(monkeypatch, too_large)
    assert answer == {"too_large": {"message": str(too_large), "needed_bytes": 2**34, "available_bytes": 2**33}}
    assert phases == ["compile"]


def test_a_rejection_is_an_answer(monkeypatch):
    answer, _, _ = answered(monkeypatch, aot_compile.CompilerRejection("no such dtype"))
    assert answer == {"refused": "no such dtype"}


@pytest.mark.parametrize("name", ["cpu"])
def test_the_process_is_configured_for_the_target(monkeypatch, name):
    configured = []
    monkeypatch.setattr(aot_compile, "configure_process", configured.append)
    compile_job.configure_process(OPTIONS)
    assert configured == [compiler_target(cluster(name))]
