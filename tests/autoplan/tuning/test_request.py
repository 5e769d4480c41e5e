from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.tuning.request import EstimateRequest
from cost_models.config import Precision
from tests.builders.observations import cluster, config
from tests.builders.sources import SOURCE

OWN = config(64, 2, remat={"mode": "full"})


def asked(mesh=None, **settings):
    return EstimateRequest(source=SOURCE, settings=settings, mesh=mesh)


def test_a_request_without_settings_is_the_script_on_all_devices():
    assert asked().config(OWN, cluster(1)) == OWN
    assert asked().config(OWN, cluster(4)) == config(64, 2, mesh={"data": 4, "model": 1}, remat={"mode": "full"})


def test_settings_replace_the_scripts_own_values():
    settings = {"global": 32, "precision": "bfloat16", "remat": "none", "jit_compile": False, "steps_per_execution": 4}
    found = asked(**settings, accumulation=4, shard_state=True).config(OWN, cluster(1))
    assert found == config(
        32,
        4,
        precision="bfloat16",
        layout={"shard_state": True},
        steps_per_execution=4,
        jit_compile=False,
    )
    assert found.precision is Precision.BFLOAT16


def test_a_mesh_is_at_most_the_hardwares():
    assert asked(mesh={"data": 2}).config(OWN, cluster(4)).mesh.data == 2
    with pytest.raises(ConfigError, match="a mesh of 8 devices is larger than a machine, which has 4"):
        asked(mesh={"data": 4, "model": 2}).config(OWN, cluster(4))


def test_assumptions_name_the_mesh_and_the_memory_of_a_local_cpu():
    remote = cluster(4, local=False)
    (mesh,) = asked().assumptions(OWN, remote)
    assert mesh.startswith("no --mesh was given, so the batch is split over all 4 devices; `tune` starts from the ")
    assert asked(mesh={"data": 2}).assumptions(OWN, remote) == []
    (memory,) = asked().assumptions(OWN, cluster(1))
    assert memory.startswith("the memory figures cover the training's state and buffers only")
