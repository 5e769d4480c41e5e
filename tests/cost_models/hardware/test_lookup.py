"""Clusters from catalogue names."""

import json

import pytest

from cost_models.hardware.catalogue import rows
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster, describe, known
from tests.builders.workloads import GIB


def every_name():
    for row in rows().values():
        if row.kind == "tpu":
            yield from (f"{row.key}-{size}" for size in row.slices)
        else:
            yield row.key
            if row.kind == "gpu":
                yield f"{row.key}-x{row.max_chips_per_host}-n2"


@pytest.mark.parametrize("name", list(every_name()))
def test_a_cluster_survives_json_whole(name):
    there = cluster(name)
    again = from_mapping(json.loads(json.dumps(there.to_dict())))
    assert again == there
    assert there.devices == there.devices_per_host * there.hosts
    assert there.chip.usable_memory_bytes <= there.chip.memory_bytes
    assert there.chip.sources["usable_memory_bytes"]
    assert set(there.chip.sources) >= {f"peak_flops_per_second.{dtype}" for dtype in there.chip.peak_flops_per_second}


@pytest.mark.parametrize(
    ("name", "devices", "hosts", "topology", "gib"),
    [
        ("tpu-v2-8", 8, 1, (2, 2), 7.48),
        ("tpu-v3-8", 8, 1, (2, 2), 15.48),
        ("tpu-v3-32", 32, 4, (4, 4), 15.48),
        ("tpu-v4-8", 4, 1, (2, 2, 1), 30.75),
        ("tpu-v4-128", 64, 16, (4, 4, 4), 30.75),
        ("tpu-v5e-8", 8, 1, (2, 4), 15.75),
        ("tpu-v5e-16", 16, 4, (4, 4), 15.75),
        ("tpu-v5p-8", 4, 1, (2, 2, 1), 95.74),
        ("tpu-v6e-8", 8, 1, (2, 4), 31.25),
        ("tpu-v7x-8", 8, 1, (2, 2, 1), 94.75),
    ],
)
def test_slices_count_jax_devices_and_what_the_compiler_leaves_them(name, devices, hosts, topology, gib):
    there = cluster(name)
    assert (there.devices, there.hosts, there.topology) == (devices, hosts, topology)
    assert there.chip.usable_memory_bytes / GIB == pytest.approx(gib, abs=0.005)
    assert there.outer_link is None, "a slice is joined by its torus alone"


def test_figures_of_a_chip_are_shared_by_its_devices():
    v3, mi250x = cluster("tpu-v3-8"), cluster("gpu-mi250x-x4")
    assert v3.devices_per_chip == 2
    assert v3.chip.peak_flops_per_second["bfloat16"] == 123e12 / 2
    assert v3.chip.memory_bytes == 16 * GIB
    assert v3.chip.memory_bytes_per_second == 900e9 / 2
    assert mi250x.devices == 8
    assert mi250x.chip.peak_flops_per_second["bfloat16"] == 191.5e12
    assert mi250x.chip.memory_bytes == 67628957696


@pytest.mark.parametrize("name", ["gpu-a100-80gb", "gpu-t4", "gpu-mi300x"])
def test_jax_leaves_three_quarters_of_a_gpu(name):
    chip = cluster(name).chip
    assert chip.usable_memory_bytes == int(0.75 * chip.memory_bytes)
    assert "JAX's default reservation" in chip.sources["usable_memory_bytes"]


def test_gpus_have_a_link_inside_and_a_network_where_one_is_known():
    h100 = cluster("gpu-h100-80gb-x8-n2")
    assert (h100.devices, h100.hosts, h100.devices_per_host) == (16, 2, 8)
    assert (h100.inner_link.kind, h100.inner_link.bytes_per_second) == ("switch", 450e9)
    assert (h100.outer_link.kind, h100.outer_link.bytes_per_second) == ("network", 50e9)
    t4 = cluster("gpu-t4-x4-n2")
    assert t4.inner_link.kind == "host"
    assert t4.outer_link is None, "nobody published one"


def test_a_torus_is_a_mesh_until_an_axis_closes():
    assert cluster("tpu-v4-64").inner_link.kind == "mesh"
    assert cluster("tpu-v4-128").inner_link.kind == "torus"
    assert cluster("tpu-v5e-128").wraparound == (False, True)


def test_known_lists_each_chip_once_with_figures_of_a_device():
    found = {row.key: row for row in known()}
    assert len(found) == len(rows())
    assert found["tpu-v4"].sizes[:3] == (8, 16, 32)
    assert found["tpu-v7x"].memory_bytes == 96 * GIB
    assert found["tpu-v7x"].unverified == ("usable_memory_bytes_per_device",)
    assert found["tpu-v5e"].aliases == ("tpu-v5litepod", "tpu-v5lite")
    assert "(read 2026-11-29)" in found["gpu-l4"].source


def test_describe_returns_everything_as_plain_values():
    there = describe("tpu-v5litepod-8")
    assert json.loads(json.dumps(there)) == there
    assert there["name"] == "tpu-v5e-8"
    assert from_mapping(there["cluster"]) == cluster("tpu-v5e-8")
    assert there["slices"][0] == "tpu-v5e-1"
    assert there["prices"][0]["usd_per_chip_hour"] == 1.2
    bandwidth = next(row for row in there["figures"] if row["figure"] == "memory_bytes_per_second")
    assert bandwidth["value"] == 8.19e11
    assert "800 GiB/s" in bandwidth["choice"]
