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
    assert mesh == (
        "no --mesh was given, so the batch is split over all 4 devices; the script uses 1 device, which "
        "`estimate --mesh data=1` estimates"
    )
    assert asked(mesh={"data": 2}).assumptions(OWN, remote) == []
    (memory,) = asked().assumptions(OWN, cluster(1))
    assert memory.startswith("the memory figures cover the training's state and buffers only")


@pytest.mark.parametrize(("size", "works"), [(1, "--mesh data=1"), (6, "--mesh data=1 or --mesh data=2")])
def test_a_batch_that_does_not_divide_is_told_with_the_meshes_that_work(size, works):
    with pytest.raises(ConfigError) as caught:
        asked().config(config(size), cluster(4))
    batch = -(-size // 4) * 4
    assert str(caught.value) == (
        f"a global batch of {size} does not divide over 4 devices on the data axis; what works here: {works}, "
        f"or another batch, such as --batch-size {batch}"
    )
    assert asked(mesh={"data": 1}).config(config(size), cluster(4)).batch.global_size == size
    assert asked(**{"global": batch}).config(config(size), cluster(4)).mesh.data == 4


def test_a_script_that_splits_its_weights_is_not_estimated_as_if_it_did_not():
    own = config(64, mesh={"data": 1, "model": 4})
    with pytest.raises(ConfigError, match=r"splits its weights over devices \(mesh data=1,model=4\), .* --mesh data=4"):
        asked().config(own, cluster(4))
    assert asked(mesh={"data": 4}).config(own, cluster(4)).mesh.model == 1
