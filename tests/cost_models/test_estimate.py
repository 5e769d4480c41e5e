"""The whole answer: its JSON, whether it fits, and what a list of candidates costs."""

import json
from dataclasses import replace

import pytest

from cost_models import Batch, ConfigError, Mesh, TrainConfig, Workload, WorkloadError, estimate, estimate_many
from cost_models.estimate import DEFAULT_HEADROOM
from cost_models.hardware.cluster import share
from cost_models.workload.workload import UnknownOp
from tests.builders.workloads import GIB, cluster, dense

K, N = 1024, 512
GPU = cluster("gpu", 8)


def config(local=64, data=1, **more):
    return TrainConfig(Batch(local, data), mesh=Mesh(data), **more)


def test_the_json_has_the_keys_that_were_decided():
    answer = estimate(dense(K, N), config(), GPU).to_dict()
    assert list(answer) == [
        *("schema", "hardware", "evidence", "config", "memory", "time", "accuracy", "model_flops", "coverage")
    ]
    assert (answer["schema"], answer["hardware"], answer["evidence"]) == (1, "made-gpu", "analytic")
    assert list(answer["memory"]) == ["per_device_bytes", "capacity_bytes", "headroom", "fits", "may_fit"]
    assert list(answer["time"]) == [
        *("micro_step_seconds", "update_seconds", "compute_seconds", "memory_seconds", "communication_seconds"),
        *("overhead_seconds", "samples_per_second", "mfu", "bound"),
    ]
    assert answer["coverage"] == {"unknown_ops": []}
    assert answer["config"] == config().to_dict()
    assert json.loads(json.dumps(answer)) == answer


def test_it_fits_when_the_upper_end_of_the_interval_leaves_the_headroom():
    high = estimate(dense(K, N), config(), GPU).memory.total_high
    limit = int(high / (1 - DEFAULT_HEADROOM))
    for capacity, fits in ((limit - 2, False), (limit + 2, True)):
        machine = cluster("gpu", usable_memory_bytes=capacity)
        assert estimate(dense(K, N), config(), machine).fits is fits
    assert estimate(dense(K, N), config(), cluster("gpu", usable_memory_bytes=high), headroom=0.0).fits


def test_it_may_fit_until_the_lower_end_of_the_interval_exceeds_the_capacity():
    found = estimate(dense(K, N), config(), GPU).memory
    for capacity, may in ((found.total_low - 1, False), (found.total_low, True), (found.total_high - 1, True)):
        answer = estimate(dense(K, N), config(), cluster("gpu", usable_memory_bytes=capacity), headroom=0.0)
        assert (answer.fits, answer.may_fit) == (False, may)


def test_headroom_is_a_share():
    with pytest.raises(ConfigError, match="headroom is 8; expected a share of the capacity"):
        estimate(dense(K, N), config(), GPU, headroom=8)


def test_simulated_devices_share_one_memory():
    machine = share(cluster("cpu", local=True), 4)
    assert machine.chip.usable_memory_bytes == 4 * GIB
    assert estimate(dense(K, N), config(data=4), machine).capacity_bytes == 4 * GIB
    assert estimate(dense(K, N), config(), machine).capacity_bytes == 16 * GIB


def test_unknown_operations_are_reported():
    workload = replace(dense(K, N), unknown_ops=(UnknownOp("pallas_call", 3),))
    (found,) = estimate(workload, config(), GPU).to_dict()["coverage"]["unknown_ops"]
    assert (found["primitive"], found["count"]) == ("pallas_call", 3)
    assert "bytes" in found["reason"]


def test_an_explanation_names_the_largest_tensors_by_layer():
    answer = estimate(dense(K, N), config(), GPU).explain().to_dict()
    sizes = [tensor["bytes"] for tensor in answer["largest_tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    assert answer["largest_tensors"][0]["layer"] == "dense"


def test_many_candidates_are_the_same_answers_in_order():
    configs = [config(batch, data) for batch in (8, 16, 512) for data in (1, 8)]
    workload = dense(K, N)
    many = estimate_many(workload, configs, GPU)
    assert [one.config for one in many] == configs
    assert [one.to_dict() for one in many] == [estimate(workload, one, GPU).to_dict() for one in configs]


def test_a_workload_from_a_file_gives_the_same_answer():
    workload = dense(K, N, slots=2)
    again = Workload.from_dict(json.loads(json.dumps(workload.to_dict())))
    assert estimate(again, config(), GPU).to_dict() == estimate(workload, config(), GPU).to_dict()


def test_a_model_axis_is_refused_in_one_message():
    with pytest.raises(WorkloadError, match="not yet estimated"):
        estimate(dense(K, N), TrainConfig(Batch(8), mesh=Mesh(1, 2)), GPU)
