from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import SourceError
from autoplan.jobs.budget import Clock
from autoplan.jobs.runner import JobRunner
from autoplan.tuning.backend_choice import OtherBackend, with_other_backends
from autoplan.tuning.estimates.estimator import without_estimates
from autoplan.tuning.space.legal_configs import legal_configs
from cost_models.config import Mesh
from tests.builders.fake_client import FakeClient
from tests.builders.observations import VERSIONS, cluster, config, observation
from tests.builders.sources import SOURCE

OWN = config(64)


def findings(own=OWN):
    facts, here = observation(own), cluster()
    space = legal_configs(facts, here, VERSIONS, only=["batch"])
    return without_estimates(jobs(own.backend), facts, space, VERSIONS, f"nothing is traced on {own.backend}")


def jobs(backend):
    return JobRunner(FakeClient(), SOURCE, backend, cluster(), Clock.start(None))


def place(backend):
    return OtherBackend(jobs(backend), lambda there: findings(OWN.with_(backend=there.backend)))


def failing(backend, why):
    def find(there):
        raise SourceError(why)

    return OtherBackend(jobs(backend), find)


def test_shortlists_are_taken_in_turn_and_the_own_baseline_stays_first():
    own = findings()
    _, wide = with_other_backends(jobs("jax"), own, {"tensorflow": place("tensorflow"), "torch": place("torch")})
    assert [one.backend for one in wide.shortlist[:6]] == ["jax", "tensorflow", "torch"] * 2
    assert wide.shortlist[0] == own.space.baseline == wide.space.baseline
    assert len(wide.shortlist) == 3 * len(own.shortlist)
    assert set(wide.shortlist) <= set(wide.space.configs)


def test_each_backend_answers_for_its_own_configurations():
    here, wide = with_other_backends(jobs("jax"), findings(), {"torch": place("torch")})
    moved = OWN.with_(backend="torch")
    assert (here.of(moved).backend, here.of(moved).baseline) == ("torch", moved)
    assert here.of(OWN) is here
    assert wide.of(moved).space.baseline == moved
    assert wide.of(OWN) is wide


def test_where_it_does_not_run_is_said_with_the_reason():
    here, wide = with_other_backends(jobs("jax"), findings(), {"torch": failing("torch", "it calls\n  jax.numpy")})
    assert not here.others
    assert {one.backend for one in wide.shortlist} == {"jax"}
    assert wide.rejected[0].reason == "the training does not run on torch: it calls jax.numpy"
    assert "not tried on torch: the training does not run on torch: it calls jax.numpy" in wide.notes


def test_what_splits_its_batch_over_devices_stays_on_jax():
    own = findings()
    meshed = replace(own, space=replace(own.space, baseline=OWN.with_(mesh=Mesh(2))))
    _, wide = with_other_backends(
        jobs("jax"), meshed, {"torch": OtherBackend(jobs("torch"), lambda _: pytest.fail("it was looked at"))}
    )
    assert "splits its batch over devices, which only JAX does" in wide.rejected[0].reason
