"""Compile targets of clusters: names of TPU topologies, descriptions of GPUs, CPUs."""

import json
from dataclasses import replace

import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import rows
from cost_models.hardware.compile_targets import CompilerTarget, compilable, compiler_target
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster


@pytest.mark.parametrize(
    ("name", "topology", "arguments"),
    [
        ("tpu-v5e-4", "v5e:2x2", {"chips_per_host_bounds": [2, 2, 1]}),
        ("tpu-v5e-16", "v5e:4x4", {}),
        ("tpu-v4-8", "v4:2x2x1", {"chip_config_name": "megacore", "chips_per_host_bounds": [2, 2, 1]}),
        ("tpu-v4-128", "v4:4x4x4", {"chip_config_name": "megacore"}),
        ("tpu-v7x-8", "TPU7x:2x2x1", {"chips_per_host_bounds": [2, 2, 1]}),
    ],
)
def test_a_tpu_slice_is_a_topology_with_as_many_devices_as_the_cluster(name, topology, arguments):
    target = compiler_target(cluster(name))
    assert target == CompilerTarget("tpu", topology, cluster(name).devices, arguments)
    assert target.name == f"XLA:TPU {topology}"


def test_gpus_are_described_by_their_figures():
    target = compiler_target(cluster("gpu-a100-80gb-x8-n2"))
    assert (target.platform, target.topology, target.devices) == ("cuda", "1x2x8", 16)
    assert target.name == "XLA:GPU gpu-a100-80gb 1x2x8"
    lines = target.arguments["target_config"].splitlines()
    assert "  cuda_compute_capability { major: 8 minor: 0 }" in lines
    assert "  core_count: 108" in lines
    assert 'platform_name: "CUDA"' in lines


def test_a_cpu_compiles_for_itself():
    assert compiler_target(cluster("cpu")) == CompilerTarget("cpu", "host", 1)
    assert compiler_target(cluster("cpu")).name == "XLA:CPU host"


@pytest.mark.parametrize("name", ["tpu-v5e-4", "gpu-h100-80gb", "cpu"])
def test_a_target_survives_json(name):
    target = compiler_target(cluster(name))
    assert CompilerTarget.from_dict(json.loads(json.dumps(target.to_dict()))) == target


def test_every_described_gpu_is_in_the_catalogue_and_has_a_target():
    assert set(compilable()) <= set(rows())
    assert {compiler_target(cluster(name)).platform for name in compilable()} == {"cuda"}


def test_a_gpu_without_a_description_is_an_error_that_lists_the_described_ones():
    with pytest.raises(HardwareError, match=r"XLA:GPU has no description of NVIDIA T4.*; it has .*gpu-a100-80gb"):
        compiler_target(cluster("gpu-t4"))


def test_a_local_gpu_is_identified_by_its_device_kind():
    kind = rows()["gpu-h100-80gb"].device_kinds[0]
    published = cluster("gpu-h100-80gb-x2")
    local = replace(published, name="local", local=True, chip=replace(published.chip, name=kind))
    assert compiler_target(local) == compiler_target(published)


def test_hardware_without_a_name_in_the_catalogue_is_an_error_that_says_where_to_find_names():
    described = from_mapping({"base": "gpu-a100-80gb", "name": "lab"})
    with pytest.raises(
        HardwareError, match="no compile target is known for 'lab', which a file describes; give a name"
    ):
        compiler_target(described)
    with pytest.raises(HardwareError, match="no compile target is known for the local gpu-a100-80gb"):
        compiler_target(replace(described, local=True))
