from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind, ValidationRows
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import Failure, FailureKind, ValidationMemory
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.verification import validation_check
from cost_models.estimate import Validation
from tests.builders import estimates
from tests.builders.fake_client import FakeClient
from tests.builders.observations import GIB, cluster, config, observation
from tests.builders.sources import SOURCE

OWN = config(16)


def estimated(*, fits=False, fitting_rows=512, needed=2 * GIB):
    memory = estimates.memory(needed, high=needed)
    validation = Validation(4096, memory, fits=fits, may_fit=True, fitting_rows=None if fits else fitting_rows)
    return CandidateEstimate.of(replace(estimates.estimate(OWN), validation=validation))


def checked(estimate, *, largest=10**9, limited=True, kind=FailureKind.OOM, budget=None, **rows):
    """The verdict, and the rows of each run; more rows than `largest` run out of memory."""
    facts = {"rows": 4096, "samples": 4096, "fixed": True, "settable": True} | rows
    seen = observation(OWN, validation=ValidationRows(**facts))

    def plant(job):
        asked = job.options.get("validation_rows", 4096)
        return Failure(kind=kind, message="used 1.1 GiB", held_bytes=GIB) if asked > largest else None

    client = FakeClient(seen, plant=plant)
    jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(budget), baseline=OWN)
    verdict = validation_check.check(jobs, seen, estimate, OWN, lambda event: None, limited=limited)
    runs = [job.options.get("validation_rows") for job in client.jobs if job.kind is JobKind.VALIDATE]
    return verdict, runs


def test_a_validation_that_surely_fits_is_not_run():
    verdict, runs = checked(estimated(fits=True), limited=False)
    assert (verdict.fits, verdict.evidence, runs) == (True, "analytic", [])


def test_under_a_limit_it_is_run_in_any_case():
    verdict, runs = checked(estimated(fits=True), largest=600)
    assert (verdict.fits, verdict.evidence, verdict.fitting_rows, runs) == (False, "measured", 512, [None, 2048, 512])


@pytest.mark.parametrize(
    ("largest", "rows", "runs"),
    [(4096, None, [None]), (512, 512, [None, 512]), (100, 32, [None, 512, 128, 32]), (16, 16, [None, 512, 128, 32])],
)
def test_one_that_may_not_fit_is_run_and_then_with_fewer_rows(largest, rows, runs):
    verdict, ran = checked(estimated(), largest=largest)
    assert (verdict.fits, verdict.fitting_rows, verdict.evidence) == (largest == 4096, rows, "measured")
    assert ran == runs


def test_without_an_estimate_it_is_run_under_a_limit_only():
    assert checked(None, limited=False) == (None, [])
    verdict, runs = checked(None, largest=2048)
    assert (verdict.fits, verdict.fitting_rows, runs) == (False, 2048, [None, 2048])


def test_without_time_for_a_search_the_rows_of_a_micro_step_fit():
    """A micro-step of 16 rows ran, and their forward pass takes less."""
    verdict, runs = checked(estimated(), largest=16, budget=1e-9)
    assert (verdict.fitting_rows, verdict.fitting_ran, runs) == (16, False, [None])


def test_rows_that_follow_the_training_or_cannot_be_set_are_not_searched():
    assert checked(estimated(), largest=1, fixed=False) == (None, [])
    verdict, runs = checked(estimated(), largest=1, settable=False)
    assert (verdict.fits, verdict.fitting_rows, runs) == (False, None, [None])


def test_a_validation_that_fails_for_another_reason_says_nothing_of_memory():
    verdict, _ = checked(estimated(), largest=1, kind=FailureKind.CRASH)
    assert verdict is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"evidence": "measured", "needed_bytes": GIB, "fitting_rows": 512, "fitting_ran": True},
            " (it held 1.00 GiB, measured): set validation_batch_size=512, which was run and fits",
        ),
        (
            {"evidence": "analytic", "needed_bytes": 2 * GIB, "fitting_rows": 256},
            " (it needs up to 2.00 GiB, analytic): set validation_batch_size=256",
        ),
        (
            {"evidence": "measured"},
            ": use smaller batches of validation data",
        ),
    ],
)
def test_the_verdict_names_rows_that_fit(changes, text):
    found = ValidationMemory.model_validate({"rows": 4096, "fits": False} | changes)
    words = "Training fits, validation (4,096 rows at once) does not fit in 1.00 GiB"
    assert validation_check.verdict(found, GIB) == words + text
    assert validation_check.verdict(found.model_copy(update={"fits": True}), GIB) is None
