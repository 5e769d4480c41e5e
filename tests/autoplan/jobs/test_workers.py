from __future__ import annotations

from contextlib import ExitStack

import pytest

from autoplan.errors import ConfigError, WorkerError
from autoplan.jobs import workers
from autoplan.jobs.messages import JobKind, JobResult
from autoplan.machine import hardware_profile
from autoplan.sources import keras_backend
from tests.builders.fake_client import FakeClient, failure


@pytest.fixture
def pool(monkeypatch):
    """Workers whose clients answer at once; `pool.clients` are the clients that were started."""
    started = []

    def client(backend):
        started.append(backend)
        return FakeClient()

    monkeypatch.setattr(workers, "Client", client)
    with ExitStack() as stack:
        made = workers.Workers(stack)
        made.started = started
        yield made


def test_a_backends_workers_are_started_once_when_they_are_first_used(pool):
    assert pool.started == []
    assert pool["jax"] is pool["jax"]
    assert pool["torch"] is not pool["jax"]
    assert pool.started == ["jax", "torch"]


def test_training_steps_are_traced_on_jax_where_it_is_installed(pool, monkeypatch):
    assert pool.tracer() is pool["jax"]
    monkeypatch.setattr(keras_backend, "installed", lambda name: False)
    assert pool.tracer() is None


def test_named_hardware_needs_no_worker(pool):
    assert pool.cluster("tpu-v5e-8", "jax", None, pytest.fail).devices == 8
    assert pool.started == []


def test_devices_are_simulated_on_jax_alone(pool):
    with pytest.raises(ConfigError, match=r"--devices 4: keras\.distribution splits a batch over devices on JAX only"):
        pool.cluster("local", "torch", 4, pytest.fail)


def test_a_probe_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(hardware_profile, "save", pytest.fail)
    client = FakeClient(plant=lambda job: failure(message="no memory"))
    with pytest.raises(WorkerError, match="this machine could not be measured: no memory"):
        workers.probe(client, "jax", None)


def test_what_a_probe_measured_is_stored(monkeypatch):
    stored = []
    monkeypatch.setattr(hardware_profile, "save", lambda *profile: stored.append(profile))
    client = FakeClient(plant=lambda job: JobResult({"rates": 1}, None, 1.0) if job.kind is JobKind.PROBE else None)
    assert workers.probe(client, "jax", 2) == {"rates": 1}
    assert stored == [({"rates": 1}, "jax", 2)]
