from __future__ import annotations

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind, SplitProbe
from autoplan.jobs.runner import JobRunner
from autoplan.jobs.split_probe import with_probe
from autoplan.plan.records import FailureKind
from cost_models.config import Precision
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import cluster, config, observation
from tests.builders.sources import SOURCE


def of_split(client):
    return [job for job in client.jobs if job.kind is JobKind.SPLIT]


def probed(client):
    """The record of a probe of a training, by what its worker answers."""
    jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(None))
    return with_probe(jobs, jobs.observe(), effective_batch_is_free=False).probe


def test_the_answer_of_the_worker_is_recorded():
    answer = SplitProbe(split="same", random_draws=["drop (Dropout)"])
    assert probed(FakeClient(facts=observation(probe=answer))) == answer


def test_mixed_precision_is_probed_in_float32():
    client = FakeClient(facts=observation(config(precision="mixed_bfloat16")))
    probed(client)
    (job,) = of_split(client)
    assert job.config.precision is Precision.FLOAT32
    assert job.baseline.precision is Precision.MIXED_BFLOAT16


@pytest.mark.parametrize(("kind", "tries"), [(FailureKind.OOM, 2), (FailureKind.TIMEOUT, 1), (FailureKind.CRASH, 1)])
def test_a_probe_that_fails_is_recorded_with_its_reason(kind, tries):
    client = FakeClient(plant=lambda job: failure(kind, "no\nmore") if job.kind is JobKind.SPLIT else None)
    found = probed(client)
    assert (found.ran, found.split) == (False, "not_known")
    assert found.split_reason == f"its micro-steps did not run ({kind.value}: no)"
    assert [job.options["rows"] for job in of_split(client)] == [64, 4][:tries]


def test_a_model_larger_than_this_machine_is_not_run():
    client = FakeClient(facts=observation(parameters=10**12))
    found = probed(client)
    assert not found.ran
    assert "1,000,000,000,000 parameters need more memory than this machine has" in found.split_reason
    assert of_split(client) == []
