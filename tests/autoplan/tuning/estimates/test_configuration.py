from __future__ import annotations

import pytest

from autoplan.errors import WorkerError
from autoplan.plan.records import CompiledMemory, CompilerEvidence, Failure, FailureKind
from autoplan.tuning.estimates.configuration import ConfigurationEstimate, answered
from cost_models.estimate import Explanation
from tests.builders import estimates
from tests.builders.observations import GIB, config

ANALYTIC = estimates.estimate(config(), capacity=4 * GIB, headroom=0.25)
TOO_LARGE = Failure(kind=FailureKind.COMPILE_OOM, message="too large", needed_bytes=9 * GIB)


def compiled(total_bytes, **beside):
    sizes = {"argument_bytes": 1, "output_bytes": 2, "alias_bytes": 3, "temporary_bytes": total_bytes}
    memory = CompiledMemory(**sizes, total_bytes=total_bytes, **beside)
    time = estimates.time(0.5)
    return CompilerEvidence(
        target="XLA:GPU", versions={}, lower_seconds=1.0, compile_seconds=2.0, memory=memory, time=time
    )


def test_the_analytic_document_is_that_of_the_estimate_with_notes():
    found = ConfigurationEstimate(ANALYTIC, notes=("no --mesh was given",))
    assert found.to_dict() == {**ANALYTIC.to_dict(), "notes": ["no --mesh was given"]}
    explained = ConfigurationEstimate(ANALYTIC, explanation=Explanation(()))
    assert explained.to_dict()["explanation"] == {"largest_tensors": []}


@pytest.mark.parametrize(("needed", "fits"), [(3 * GIB, True), (3 * GIB + 1, False)])
def test_a_compiled_document_has_the_compilers_figures_beside_the_analytic_ones(needed, fits):
    found = ConfigurationEstimate(ANALYTIC, compiled(needed)).to_dict()
    assert (found["evidence"], found["analytic"]) == ("compiled", ANALYTIC.to_dict())
    assert found["memory"] == {
        "capacity_bytes": 4 * GIB,
        "headroom": 0.25,
        "per_device_bytes": {
            "argument": 1,
            "output": 2,
            "alias": 3,
            "temporary": needed,
            "total": needed,
            "peak": None,
            "host": None,
            "code": None,
        },
        "must_fit_bytes": needed,
        "fits": fits,
        "may_fit": fits,
    }
    assert found["time"] == estimates.time(0.5).to_dict()
    assert found["compiler"]["target"] == "XLA:GPU"


def test_the_next_batch_must_fit_beside_the_program_and_is_no_figure_of_the_compilers():
    found = ConfigurationEstimate(ANALYTIC, compiled(3 * GIB, other_batches_bytes=1)).to_dict()["memory"]
    assert (found["must_fit_bytes"], found["other_batches_bytes"], found["fits"]) == (3 * GIB + 1, 1, False)
    assert found["per_device_bytes"]["total"] == 3 * GIB
    assert "other_batches" not in found["per_device_bytes"]


def test_a_program_that_the_compiler_finds_too_large_is_an_answer():
    assert answered(TOO_LARGE, config()) == TOO_LARGE
    found = ConfigurationEstimate(ANALYTIC, TOO_LARGE).to_dict()
    assert found["memory"]["per_device_bytes"] == {"total": 9 * GIB}
    assert (found["memory"]["fits"], found["memory"]["may_fit"], found["time"]) == (False, False, None)
    assert found["failure"]["message"] == "too large"


def test_any_other_failure_is_no_answer():
    failure = Failure(kind=FailureKind.CRASH, message="ended")
    with pytest.raises(WorkerError, match=r"float32, batch 64 could not be compiled \(crash: ended\)"):
        answered(failure, config())
