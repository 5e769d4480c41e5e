"""Clusters from names, from plain values and from files' contents; and one processor seen as several devices."""

import json

import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import rows
from cost_models.hardware.cluster import Chip, Cluster, Link, cluster, describe, from_mapping, known, limited, share

GIB = 2**30


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
    again = Cluster.from_dict(json.loads(json.dumps(there.to_dict())))
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


def test_describe_tells_everything_as_plain_values():
    there = describe("tpu-v5litepod-8")
    assert json.loads(json.dumps(there)) == there
    assert there["name"] == "tpu-v5e-8"
    assert from_mapping(there["cluster"]) == cluster("tpu-v5e-8")
    assert there["slices"][0] == "tpu-v5e-1"
    assert there["prices"][0]["usd_per_chip_hour"] == 1.2
    bandwidth = next(row for row in there["figures"] if row["figure"] == "memory_bytes_per_second")
    assert bandwidth["value"] == 8.19e11
    assert "800 GiB/s" in bandwidth["choice"]


CHIP = {
    "name": "house-accelerator",
    "kind": "gpu",
    "peak_flops_per_second": {"float32": "5e13", "bfloat16": 1e14},
    "memory_bytes": "32 GiB",
    "memory_bytes_per_second": 9e11,
}
MACHINE = {"name": "lab", "chip": CHIP, "devices": 4}


def test_a_description_needs_only_what_nobody_can_guess():
    there = from_mapping(MACHINE)
    assert there == Cluster(
        name="lab",
        devices=4,
        chip=Chip(
            name="house-accelerator",
            kind="gpu",
            peak_flops_per_second={"float32": 5e13, "bfloat16": 1e14},
            memory_bytes=32 * GIB,
            usable_memory_bytes=32 * GIB,
            memory_bytes_per_second=9e11,
            kernel_launch_seconds=0.0,
            dispatch_seconds=0.0,
        ),
    )


def test_a_description_may_start_from_the_catalogue():
    network = {"kind": "network", "bytes_per_second": 1.25e10, "latency_seconds": 2e-5}
    there = from_mapping({"base": "gpu-t4-x4-n2", "outer_link": network, "chip": {"usable_memory_bytes": "14 GiB"}})
    base = cluster("gpu-t4-x4-n2")
    assert there.outer_link == Link("network", 1.25e10, 2e-5)
    assert there.chip.usable_memory_bytes == 14 * GIB
    assert there.chip.peak_flops_per_second == base.chip.peak_flops_per_second
    assert there.inner_link == base.inner_link


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"device": 4},
            "hardware has an unknown key 'device'; did you mean devices? Expected: name, chip, devices, hosts",
        ),
        ({"devices": "four"}, "hardware.devices is 'four'; expected a whole number"),
        ({"devices": 0}, "lab: 0 devices do not spread evenly over 1 hosts"),
        ({"devices": 2**25}, "lab: 33554432 devices; expected at most 16777216"),
        ({"hosts": 3}, "lab: 4 devices do not spread evenly over 3 hosts"),
        ({"topology": [3, 1], "wraparound": [False, False]}, "lab: 4 devices do not fill a topology of (3, 1) chips"),
        ({"topology": [2, 2]}, "lab: wraparound needs one true or false for each topology axis"),
        ({"chip": {**CHIP, "kind": "npu"}}, "chip kind 'npu' of house-accelerator; expected one of tpu, gpu, cpu"),
        ({"chip": {**CHIP, "peak_flops_per_second": {}}}, "house-accelerator has no peak_flops_per_second"),
        (
            {"chip": {**CHIP, "peak_flops_per_second": {"float32": 0}}},
            "house-accelerator: float32 is 0.0; expected a number",
        ),
        ({"chip": {**CHIP, "memory": 3}}, "chip has an unknown key 'memory'"),
        ({"chip": {**CHIP, "usable_memory_bytes": "33 GiB"}}, "expected more than 0 and at most memory_bytes"),
        ({"chip": {"name": "x"}}, "chip lacks kind, peak_flops_per_second, memory_bytes, memory_bytes_per_second"),
        ({"inner_link": {"kind": "switch"}}, "inner_link lacks bytes_per_second, latency_seconds"),
        (
            {"inner_link": {"kind": "wire", "bytes_per_second": 1, "latency_seconds": 0}},
            "link kind 'wire'; expected one of torus, mesh, switch",
        ),
        (
            {"inner_link": {"kind": "torus", "bytes_per_second": 1, "latency_seconds": 0}},
            "lab: a torus needs a topology, as in [2, 2, 1]",
        ),
        (
            {"inner_link": {"kind": "switch", "bytes_per_second": 1, "latency_seconds": 0, "efficiency": 1.2}},
            "switch link: efficiency is 1.2; expected a share of at most 1",
        ),
        ({"base": "gpu-a100"}, "'gpu-a100' is ambiguous"),
        ({"base": "cpu", "chip": {"processors": 0}}, "cpu: processors is 0; expected a number above zero"),
        ({"base": "cpu", "chip": {"processors": -2}}, "chip.processors is -2; expected a whole number"),
        ({"base": "cpu", "chip": {"cache_bytes": 0}}, "cpu: cache_bytes is 0; expected a number above zero"),
        ({"base": "cpu", "chip": {"cache_bytes": "big"}}, "chip.cache_bytes is 'big'; expected bytes"),
        (
            {"base": "cpu", "chip": {"fresh_page_bytes_per_second": 0}},
            "cpu: fresh_page_bytes_per_second is 0.0; expected a number above zero",
        ),
        ({"base": "cpu", "chip": {"host_variable_seconds": "1 us"}}, "chip.host_variable_seconds is '1 us'; expected"),
        ({"base": "cpu", "devices": 10**400}, "expected a whole number"),
    ],
)
def test_a_wrong_description_is_told_where_and_what_was_expected(changes, message):
    with pytest.raises(HardwareError) as caught:
        from_mapping({**MACHINE, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "gpu-t4", 3])
def test_what_is_no_mapping_is_told_so(data):
    with pytest.raises(HardwareError, match=r"^a hardware description must be a mapping"):
        from_mapping(data)


def test_a_shared_processor_gives_each_device_its_part():
    alone = cluster("cpu")
    four = share(alone, 4)
    assert (four.devices, four.simulated) == (4, True)
    assert four.chip.memory_bytes == alone.chip.memory_bytes // 4
    assert four.chip.usable_memory_bytes == alone.chip.usable_memory_bytes // 4
    assert four.chip.memory_bytes_per_second == alone.chip.memory_bytes_per_second / 4
    assert four.chip.peak_flops_per_second["float32"] == alone.chip.peak_flops_per_second["float32"] / 4
    assert four.chip.dispatch_seconds == alone.chip.dispatch_seconds
    assert four.inner_link.kind == "memory"
    assert four.inner_link.bytes_per_second == four.chip.memory_bytes_per_second
    assert four.chip.sources["simulated"] == "one of 4 equal shares of a single processor"


def test_a_share_of_the_smallest_cache_is_one_that_can_be_told():
    tiny = from_mapping({"base": "cpu", "chip": {"cache_bytes": 4, "processors": 2}})
    part = share(tiny, 8)
    assert (part.chip.processors, part.chip.cache_bytes) == (1, 1)
    assert Cluster.from_dict(part.to_dict()) == part


def test_a_limit_leaves_less_memory_and_everything_else():
    alone = cluster("cpu")
    less = limited(alone, alone.chip.usable_memory_bytes // 4)
    assert less.chip.usable_memory_bytes == alone.chip.usable_memory_bytes // 4
    assert less.chip.sources["usable_memory_bytes"] == "the limit that was asked for"
    assert less.chip.memory_bytes == alone.chip.memory_bytes
    assert limited(alone, 2 * alone.chip.usable_memory_bytes) == alone


def test_a_limit_is_one_for_all_simulated_devices_and_of_each_real_one():
    four = share(cluster("cpu"), 4)
    limit = four.chip.usable_memory_bytes
    assert limited(four, limit).chip.usable_memory_bytes == limit // 4
    assert limited(cluster("tpu-v4-8"), 2**30).chip.usable_memory_bytes == 2**30


def test_a_summary_is_one_line():
    assert cluster("tpu-v4-8").summary() == "4 devices (2x2x1 chips) of tpu-v4, 30.75 GiB usable each"
    assert cluster("gpu-h100-80gb-x8-n2").summary() == "16 devices on 2 hosts of gpu-h100-80gb, 59.33 GiB usable each"
    assert share(cluster("cpu"), 8).summary() == "8 simulated devices of cpu, 2.00 GiB usable each"
