"""Clusters from hardware files."""

import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import Chip, Cluster, Link
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster
from tests.builders.workloads import GIB

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
def test_a_wrong_description_is_an_error_with_its_path_and_what_was_expected(changes, message):
    with pytest.raises(HardwareError) as caught:
        from_mapping({**MACHINE, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "gpu-t4", 3])
def test_a_description_that_is_no_mapping_is_an_error(data):
    with pytest.raises(HardwareError, match=r"^a hardware description must be a mapping"):
        from_mapping(data)
