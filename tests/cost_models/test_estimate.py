"""The whole answer: its JSON, whether it fits, and what a list of candidates costs."""

import json
from dataclasses import replace

import pytest

from cost_models import (
    Batch,
    ConfigError,
    Estimate,
    Mesh,
    TrainConfig,
    WorkloadError,
    estimate,
    estimate_many,
    explain,
)
from cost_models.hardware.cluster import share
from cost_models.hardware.lookup import cluster as catalogued
from cost_models.memory import DEFAULT_HEADROOM, Capacity
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import UnknownOp
from tests.builders.configs import local_config as config
from tests.builders.workloads import GIB, cluster, dense

K, N = 1024, 512
GPU = cluster("gpu", 8)


def test_the_json_has_the_keys_that_were_decided():
    answer = estimate(dense(K, N), config(64), GPU).to_dict()
    assert list(answer) == [
        *("schema", "hardware", "evidence", "config", "memory", "time", "accuracy", "model_flops", "coverage"),
        "largest",
    ]
    assert (answer["schema"], answer["hardware"], answer["evidence"]) == (1, "made-gpu", "analytic")
    assert list(answer["memory"]) == ["per_device_bytes", "capacity_bytes", "headroom", "fits", "may_fit"]
    assert list(answer["time"]) == [
        *("micro_step_seconds", "update_seconds", "compute_seconds", "memory_seconds", "communication_seconds"),
        *("overhead_seconds", "samples_per_second", "mfu", "bound"),
    ]
    assert answer["coverage"] == {"unknown_ops": []}
    assert answer["config"] == config(64).to_dict()
    assert estimate(dense(K, N), config(64), GPU)["memory"] == answer["memory"]
    assert json.loads(json.dumps(answer)) == answer


def read_again(document):
    return Estimate.from_dict(json.loads(json.dumps(document)))


def test_an_estimate_is_read_as_it_was_written():
    workload = replace(dense(K, N), unknown_ops=(UnknownOp("pallas_call", 3),))
    for where in (GPU, catalogued("gpu-a100-80gb")):
        found = estimate(workload, config(16, 8, keep_freed_memory=True) if where is GPU else config(64), where)
        assert read_again(found.to_dict()) == found
        assert read_again(found.to_dict()).to_dict() == found.to_dict()


def test_an_estimate_of_an_older_version_is_read_without_what_it_lacks():
    found = estimate(dense(K, N), config(64), catalogued("gpu-a100-80gb"))
    older = found.to_dict()
    del older["accuracy"], older["coverage"], older["model_flops"], older["memory"]["may_fit"]
    assert read_again(older | {"notes": []}) == replace(found, accuracy=None, model_flops=None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("time", None, "the estimate cannot be read: estimate.time is None; expected a mapping"),
        ("time", {}, "the estimate of time cannot be read: time lacks micro_step_seconds, update_seconds"),
        ("memory", {"capacity_bytes": 1}, "cannot be read: estimate.memory lacks per_device_bytes, headroom"),
        ("model_flops", "many", "cannot be read: estimate.model_flops is 'many'; expected a number"),
        ("accuracy", {"low_ratio": 1.0}, "the accuracy of an estimate cannot be read: accuracy lacks high_ratio"),
    ],
)
def test_an_estimate_that_cannot_be_read_says_where(key, value, message):
    with pytest.raises(ConfigError, match=message):
        read_again(estimate(dense(K, N), config(64), GPU).to_dict() | {key: value})


def test_a_program_fits_up_to_the_capacity_less_the_headroom():
    capacity = Capacity(1000, 0.25)
    assert capacity.usable_bytes == 750
    assert [capacity.fits(size) for size in (750, 751)] == [True, False]
    assert [capacity.may_fit(size) for size in (1000, 1001)] == [True, False]


def test_it_fits_when_the_upper_end_of_the_interval_leaves_the_headroom():
    high = estimate(dense(K, N), config(64), GPU).memory.total_high
    limit = int(high / (1 - DEFAULT_HEADROOM))
    for capacity, fits in ((limit - 2, False), (limit + 2, True)):
        machine = cluster("gpu", usable_memory_bytes=capacity)
        assert estimate(dense(K, N), config(64), machine).fits is fits
    assert estimate(dense(K, N), config(64), cluster("gpu", usable_memory_bytes=high), headroom=0.0).fits


def test_it_may_fit_until_the_lower_end_of_the_interval_exceeds_the_capacity():
    found = estimate(dense(K, N), config(64), GPU).memory
    for capacity, may in ((found.total_low - 1, False), (found.total_low, True), (found.total_high - 1, True)):
        answer = estimate(dense(K, N), config(64), cluster("gpu", usable_memory_bytes=capacity), headroom=0.0)
        assert (answer.fits, answer.may_fit) == (False, may)


def test_headroom_is_a_share():
    with pytest.raises(ConfigError, match="headroom is 8; expected a share of the capacity"):
        estimate(dense(K, N), config(64), GPU, headroom=8)


def test_simulated_devices_share_one_memory():
    machine = share(cluster("cpu", local=True), 4)
    assert machine.chip.usable_memory_bytes == 4 * GIB
    assert estimate(dense(K, N), config(64, data=4), machine).capacity_bytes == 4 * GIB
    assert estimate(dense(K, N), config(64), machine).capacity_bytes == 16 * GIB


def test_unknown_operations_are_reported():
    workload = replace(dense(K, N), unknown_ops=(UnknownOp("pallas_call", 3),))
    (found,) = estimate(workload, config(64), GPU).to_dict()["coverage"]["unknown_ops"]
    assert (found["primitive"], found["count"]) == ("pallas_call", 3)
    assert "bytes" in found["reason"]


def test_an_explanation_names_the_largest_tensors_by_layer():
    answer = explain(dense(K, N), config(64), GPU).to_dict()
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
    again = workload_from_dict(json.loads(json.dumps(workload_to_dict(workload))))
    assert estimate(again, config(64), GPU).to_dict() == estimate(workload, config(64), GPU).to_dict()


def test_a_model_axis_is_refused_in_one_message():
    with pytest.raises(WorkloadError, match="not yet estimated"):
        estimate(dense(K, N), TrainConfig(Batch(8), mesh=Mesh(1, 2)), GPU)
