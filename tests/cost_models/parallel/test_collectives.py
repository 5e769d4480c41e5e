"""Collectives against formulas by hand, against each other, and against what others measured.

V payload bytes, n devices, W bytes a second one way. `made` clusters have no latency and full efficiency, so that the
formulas stand alone.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cost_models.errors import ConfigError, HardwareError
from cost_models.hardware.cluster import Chip, Cluster, Link, share
from cost_models.hardware.lookup import cluster
from cost_models.parallel.collectives import (
    NOTHING,
    Collective,
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    reduce_scatter,
    slowest_of,
)

KIB, MIB, GIB = 2**10, 2**20, 2**30
COLLECTIVES = [all_reduce, all_gather, reduce_scatter, all_to_all, collective_permute]
V = 96 * MIB
W = 100e9


def chip(memory_bytes_per_second=1e12):
    return Chip("made", "tpu", {"float32": 1e14}, GIB, GIB, memory_bytes_per_second, 0.0, 0.0)


def machine(kind, devices, hosts=1, network=None):
    outer = Link("network", network, 0.0) if network else None
    return Cluster("made", chip(), devices, hosts=hosts, inner_link=Link(kind, W, 0.0), outer_link=outer)


def torus(topology, closed, devices_per_chip=1, **link):
    chips = 1
    for length in topology:
        chips *= length
    kind = "torus" if any(closed) else "mesh"
    return Cluster(
        "made",
        chip(),
        chips * devices_per_chip,
        inner_link=Link(kind, W, link.pop("latency_seconds", 0.0), **link),
        topology=topology,
        wraparound=closed,
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["tpu-v4-8", "gpu-h100-80gb-x8-n2", "gpu-t4", "cpu"])
def test_one_device_talks_to_nobody(collective, name):
    assert collective(V, cluster(name), 1) == NOTHING == Collective("none", 0.0, 0)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("kind", ["switch", "host"])
def test_a_ring_over_a_switch(n, kind):
    there = machine(kind, n)
    assert all_reduce(V, there, n).seconds == pytest.approx(2 * (n - 1) / n * V / W)
    assert all_gather(V, there, n).seconds == pytest.approx((n - 1) / n * V / W)
    assert reduce_scatter(V, there, n).seconds == pytest.approx((n - 1) / n * V / W)
    assert all_to_all(V, there, n).seconds == pytest.approx((n - 1) / n**2 * V / W)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_bytes_that_a_device_sends(n):
    there = machine("switch", 8)
    assert all_reduce(V, there, n) == Collective("all_reduce", all_reduce(V, there, n).seconds, 2 * (n - 1) * V // n)
    assert all_gather(V, there, n).bytes_per_device == (n - 1) * V // n
    assert reduce_scatter(V, there, n).bytes_per_device == (n - 1) * V // n
    assert all_to_all(V, there, n).bytes_per_device == (n - 1) * V // n**2
    assert isinstance(all_reduce(7, there, n).bytes_per_device, int)


def test_to_hand_on_takes_one_link_and_sends_all_of_it():
    latency = 1e-6
    assert collective_permute(V, machine("switch", 8), 8) == Collective("collective_permute", pytest.approx(V / W), V)
    assert collective_permute(V, machine("direct", 8), 8).seconds == pytest.approx(V / W)
    assert collective_permute(V, torus((4, 4), (True, True), latency_seconds=latency), 4).seconds == pytest.approx(
        V / W + latency
    )
    assert collective_permute(V, machine("switch", 8, hosts=2, network=W / 10), 8).seconds == pytest.approx(10 * V / W)
    memory = machine("memory", 4)
    assert collective_permute(V, memory, 4).seconds == pytest.approx(2 * V / W)
    on_one_chip = torus((2,), (False,), devices_per_chip=2)
    assert collective_permute(V, on_one_chip, 2).seconds == pytest.approx(V / 1e12)


def test_direct_wires_carry_more_the_more_peers_there_are():
    there = machine("direct", 8)
    assert all_gather(V, there, 2).seconds == pytest.approx(V / 2 / W)
    assert all_gather(V, there, 8).seconds == pytest.approx(V / 8 / W)
    assert all_to_all(V, there, 8).seconds == pytest.approx(V / 64 / W)


def test_an_axis_that_closes_is_twice_an_open_one():
    ring, line = torus((8,), (True,)), torus((8,), (False,))
    assert all_gather(V, ring, 8).seconds == pytest.approx(7 / 8 * V / (2 * W))
    assert all_gather(V, line, 8).seconds == pytest.approx(7 / 8 * V / W)
    assert all_reduce(V, ring, 8).seconds == pytest.approx(2 * 7 / 8 * V / (2 * W))
    # Scaling book, sharding.md: an all-to-all over a bidirectional ring of bandwidth 2W takes V / (4 x 2W).
    assert all_to_all(V, ring, 8).seconds == pytest.approx(V / (8 * W))
    assert all_to_all(V, line, 8).seconds == pytest.approx(V / (4 * W))


def test_axes_work_at_once():
    cube, square = torus((4, 4, 4), (True, True, True)), torus((2, 4), (False, False))
    assert all_reduce(V, cube, 64).seconds == pytest.approx(2 * 63 / 64 * V / (6 * W))
    assert all_reduce(V, square, 8).seconds == pytest.approx(2 * 7 / 8 * V / (2 * W))
    # The longer axis is the tighter cut: half the payload's half crosses two links of one direction.
    assert all_to_all(V, square, 8).seconds == pytest.approx(V / 4 / (2 * W))
    assert all_to_all(V, cube, 64).seconds == pytest.approx(V / 4 / (16 * 2 * W))


def test_an_axis_of_one_adds_no_link():
    assert all_reduce(V, torus((2, 2, 1), (False,) * 3), 4) == all_reduce(V, torus((2, 2), (False, False)), 4)


def test_a_group_takes_whole_axes_and_the_group_above_it_the_rest():
    pod = torus((8, 16), (False, True))
    assert all_gather(V, pod, 16).seconds == pytest.approx(15 / 16 * V / (2 * W)), "the closed axis of 16"
    assert all_gather(V, pod, 8, stride=16).seconds == pytest.approx(7 / 8 * V / W), "what is left: the open axis"
    # No axis has 4: the group is a 2x2 box or a stretch of 4, neither of which closes.
    assert all_gather(V, pod, 4).seconds == pytest.approx(3 / 4 * V / (2 * W))


def test_two_devices_a_chip_combine_there_first_and_share_the_links():
    memory = 1e12
    slice_ = torus((2, 2), (False, False), devices_per_chip=2)
    on_chip = V / memory
    assert all_gather(V, slice_, 8).seconds == pytest.approx(3 / 4 * V / (2 * W) + on_chip)
    assert all_gather(V, slice_, 2).seconds == pytest.approx(on_chip)
    assert all_gather(V, slice_, 4, stride=2).seconds == pytest.approx(3 / 4 * V / (2 * W / 2)), (
        "two groups, same links"
    )


def test_hops_and_the_launch_count_once_a_phase_and_once_a_collective():
    ring = torus((8,), (True,), latency_seconds=1e-6, launch_seconds=5e-6)
    line = torus((8,), (False,), latency_seconds=1e-6, launch_seconds=5e-6)
    assert all_gather(0, ring, 8).seconds == pytest.approx(9e-6)
    assert all_reduce(0, ring, 8).seconds == pytest.approx(13e-6)
    assert all_gather(0, line, 8).seconds == pytest.approx(12e-6)
    switch = Cluster("made", chip(), 8, inner_link=Link("switch", W, 1e-6, launch_seconds=2e-5))
    assert all_reduce(0, switch, 8).seconds == pytest.approx(2e-5 + 14e-6)
    assert all_to_all(0, switch, 8).seconds == pytest.approx(2e-5 + 1e-6)


@pytest.mark.parametrize("network", [5e9, 50e9])
def test_hosts_form_one_ring_whose_slowest_stretch_counts(network):
    there = machine("switch", 16, hosts=2, network=network)
    rate = min(W, 8 * network)
    assert all_gather(V, there, 16).seconds == pytest.approx(15 / 16 * V / rate)
    assert all_reduce(V, there, 8).seconds == pytest.approx(2 * 7 / 8 * V / W), "one host is enough"
    assert all_gather(V, there, 2, stride=8).seconds == pytest.approx(V / 2 / network), "one device of each host"
    assert all_gather(V, there, 8, stride=2).seconds == pytest.approx(7 / 8 * V / min(W, 4 * network))
    leaving = V / 16 * 8 / 16 / network
    staying = V / 16 * 7 / 16 / W
    assert all_to_all(V, there, 16).seconds == pytest.approx(max(leaving, staying))


def test_simulated_devices_share_the_memory():
    bandwidth = 10e9
    alone = Cluster("local", Chip("cpu", "cpu", {"float32": 1e11}, GIB, GIB, bandwidth, 0.0, 0.0), 1, local=True)
    link = Link("memory", bandwidth / 4, latency_seconds=1e-5, launch_seconds=1e-4)
    there = share(alone, 4, link)
    fixed = 1e-4 + 4 * 1e-5
    assert all_reduce(V, there, 4).seconds == pytest.approx(fixed + 4 * 2 * V / bandwidth)
    assert all_gather(V, there, 4).seconds == pytest.approx(fixed + 4 * 2 * V / bandwidth)
    assert reduce_scatter(V, there, 4).seconds == pytest.approx(fixed + (4 + 1) * V / bandwidth)
    assert all_to_all(V, there, 4).seconds == pytest.approx(fixed + 2 * V / bandwidth)
    pair = 1e-4 + 2 * 1e-5
    assert all_reduce(V, there, 2).seconds == pytest.approx(pair + 2 * 2 * V / bandwidth), (
        "the idle half leaves its share"
    )
    assert all_reduce(V, there, 2, stride=2).seconds == pytest.approx(pair + 4 * 2 * V / bandwidth), "two groups"


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "name", ["tpu-v3-8", "tpu-v5e-16", "tpu-v4-128", "gpu-t4-x8", "gpu-mi300x-x8", "gpu-h100-80gb-x8-n4"]
)
def test_more_bytes_never_cost_less(collective, name):
    there = cluster(name)
    costs = [collective(payload, there, there.devices) for payload in (0, 1, KIB, MIB, GIB)]
    assert all(a.seconds < b.seconds and a.bytes_per_device <= b.bytes_per_device for a, b in pairwise(costs))


@pytest.mark.parametrize("name", ["tpu-v5e-16", "tpu-v4-128", "gpu-t4-x8", "gpu-h100-80gb-x8-n4"])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_launched_once(name):
    there = cluster(name)
    whole = all_reduce(V, there, there.devices)
    parts = reduce_scatter(V, there, there.devices) + all_gather(V, there, there.devices)
    assert whole.seconds == pytest.approx(parts.seconds, rel=0.05)
    assert whole.bytes_per_device == pytest.approx(parts.bytes_per_device, abs=1)


def test_costs_add():
    there = machine("switch", 8)
    once, gather = all_reduce(V, there, 8), all_gather(V, there, 8)
    assert NOTHING + once == once == once + NOTHING
    assert once + once == once.times(2) == Collective("all_reduce", 2 * once.seconds, 2 * once.bytes_per_device)
    assert (once + gather).kind == "several"
    assert sum([once, once, once], NOTHING) == once.times(3)


@pytest.mark.parametrize(
    ("name", "devices", "stride", "message"),
    [
        ("gpu-h100-80gb-x8", 16, 1, "a group of 16 devices, every 1, does not fit into the 8 of gpu-h100-80gb-x8"),
        ("gpu-h100-80gb-x8", 4, 4, "a group of 4 devices, every 4, does not fit into the 8"),
        ("gpu-h100-80gb-x8", 0, 1, "a group of 0 devices"),
        ("gpu-h100-80gb-x8-n2", 12, 1, "a group of 12 devices does not spread evenly over hosts with 8 of them each"),
        ("tpu-v5e-16", 3, 1, "a group on 3 chips does not tile the 4x4 chips that tpu-v5e-16 has for it"),
        ("tpu-v3-8", 3, 1, "a group of 3 devices does not fill chips of tpu-v3-8, which have 2 each"),
    ],
)
def test_a_group_that_cannot_be_formed_is_an_error_with_the_reason(name, devices, stride, message):
    with pytest.raises(ConfigError) as caught:
        all_reduce(V, cluster(name), devices, stride=stride)
    assert message in str(caught.value)


def test_a_link_nobody_published_is_no_free_link():
    with pytest.raises(HardwareError) as caught:
        all_reduce(V, cluster("gpu-t4-x4-n2"), 8)
    assert str(caught.value) == (
        "no figure is known for the link between hosts of gpu-t4-x4-n2; describe it as `outer_link` in a YAML file "
        "with `base: gpu-t4-x4-n2`, giving kind, bytes_per_second and latency_seconds"
    )
    with pytest.raises(HardwareError, match="no figure is known for the link within a host of two"):
        all_reduce(V, Cluster("two", chip(), 2), 2)


# Measured by others. "busbw" is nccl-tests' 2(n-1)/n V / seconds. The catalogue's efficiencies and its launch cost come
# from some of these very reports (8 H200 at 32 KiB, 8 B200 at 1 GiB, 8 MI300X, v5e); the other payloads, the four
# hosts, the pair of MI300X, v7x, v6e and the 8-GPU table set nothing.


def within(factor, predicted, measured):
    assert measured / factor <= predicted <= measured * factor, (
        f"{predicted:.3g} s predicted, {measured:.3g} s measured"
    )


# stas00/ml-engineering, network/benchmarks/results/all-reduce-8xH200.md, measured 2026-08-04 (read 2026-11-29), GB/s.
H200 = {32 * KIB: 1.44, 256 * KIB: 11.74, MIB: 39.93, 4 * MIB: 107.16, 16 * MIB: 219.89, 64 * MIB: 346.51}
H200 |= {256 * MIB: 436.15, GIB: 463.58, 16 * GIB: 482.26}


@pytest.mark.parametrize("payload", H200)
def test_eight_h200(payload):
    within(1.35, all_reduce(payload, cluster("gpu-h200-x8"), 8).seconds, 2 * 7 / 8 * payload / (H200[payload] * 1e9))


# stas00/ml-engineering, network/benchmarks/README.md, 8 and 32 B200 with 50 GB/s of network each (read 2026-11-29).
B200 = {32 * KIB: 1.20, 256 * KIB: 9.54, MIB: 36.06, 4 * MIB: 76.48, 16 * MIB: 254.96, 64 * MIB: 400.60}
B200 |= {256 * MIB: 646.11, GIB: 723.34, 16 * GIB: 845.67}
B200_FOUR_HOSTS = {256 * KIB: 1.33, MIB: 5.37, 4 * MIB: 18.90, 16 * MIB: 64.43, 64 * MIB: 156.74}
B200_FOUR_HOSTS |= {256 * MIB: 229.09, GIB: 361.99, 16 * GIB: 381.80}


@pytest.mark.parametrize("payload", B200)
def test_eight_b200(payload):
    factor = 1.25 if payload >= 256 * MIB else 2.0
    within(factor, all_reduce(payload, cluster("gpu-b200-x8"), 8).seconds, 2 * 7 / 8 * payload / (B200[payload] * 1e9))


@pytest.mark.parametrize("payload", B200_FOUR_HOSTS)
def test_four_hosts_of_eight_b200(payload):
    predicted = all_reduce(payload, cluster("gpu-b200-x8-n4"), 32).seconds
    within(1.35, predicted, 2 * 31 / 32 * payload / (B200_FOUR_HOSTS[payload] * 1e9))


@pytest.mark.parametrize(("n", "busbw"), [(2, 47.671), (8, 312.912)])
def test_mi300x_is_slow_in_pairs(n, busbw):
    """stas00/ml-engineering, network/README.md (read 2026-11-29): 4 GiB."""
    predicted = all_reduce(4 * GIB, cluster(f"gpu-mi300x-x{n}"), n).seconds
    within(1.1, predicted, 2 * (n - 1) / n * 4 * GIB / (busbw * 1e9))


# Galvatron, profiled collectives on eight GPUs whose kind it does not state; their rates are those of
# A100s on NVLink. Milliseconds by kind, number of GPUs and megabytes a GPU (read 2026-11-29).
EIGHT_GPUS = json.loads((Path(__file__).parent / "collectives_8_gpus.json").read_text(encoding="utf-8"))["milliseconds"]


@pytest.mark.parametrize("n", ["2", "4", "8"])
@pytest.mark.parametrize("megabytes", EIGHT_GPUS["all_reduce"]["8"])
def test_collectives_of_eight_gpus(n, megabytes):
    there, payload = cluster("gpu-a100-80gb-x8"), int(megabytes) * MIB
    reduced = all_reduce(payload, there, int(n)).seconds
    within(1.3 if payload >= 64 * MIB else 1.7, reduced, EIGHT_GPUS["all_reduce"][n][megabytes] / 1e3)
    exchanged = all_to_all(payload * int(n), there, int(n)).seconds
    within(2.3, exchanged, EIGHT_GPUS["all_to_all"][n][megabytes] / 1e3)


def test_four_v5e_chips_on_an_axis_that_does_not_close():
    """JAX scaling book, sharding.md (read 2026-11-29): an all-gather of 34 MB takes 680 microseconds."""
    within(1.1, all_gather(34_000_000, cluster("tpu-v5e-16"), 4).seconds, 680e-6)


# AI-Hypercomputer/tpu-recipes, microbenchmarks/ironwood/collectives/all_gather.md (read 2026-11-29): tpu7x 2x2x1,
# groups of four devices on four chips, both devices of a chip at once. Output bytes of a device, and seconds from the
# stated transferred bytes (both devices' 3/4 of the output) over the stated bandwidth.
V7X = {MIB: 71.7703034, 4 * MIB: 129.1869148, 16 * MIB: 161.9040742, 64 * MIB: 174.765465, 256 * MIB: 178.7714158}


@pytest.mark.parametrize("output", V7X)
def test_four_v7x_chips(output):
    seconds = 2 * 3 / 4 * output / (V7X[output] * 1e9)
    within(1.35 if output == MIB else 1.1, all_gather(output, cluster("tpu-v7x-8"), 4, stride=2).seconds, seconds)


def test_a_whole_pod_of_v6e():
    """tpu-recipes, microbenchmarks/trillium/collectives, read 2026-11-29: psum of 17408x17408 bfloat16, 235.76 GB/s."""
    payload = 17408 * 17408 * 2
    within(1.3, all_reduce(payload, cluster("tpu-v6e-256"), 256).seconds, 2 * 255 / 256 * payload / 235.7595e9)


def test_the_slowest_of_several_is_the_expected_largest_of_normal_values():
    """Tables of normal order statistics: 0.564 of 2, 1.424 of 8, 2.389 of 64 standard deviations; Blom's is near."""
    deviation = 0.08 / 5.4
    assert slowest_of(1) == 1
    for devices, expected in [(2, 0.564), (8, 1.424), (64, 2.389)]:
        assert (slowest_of(devices) - 1) / deviation == pytest.approx(expected, rel=0.05)


def test_cards_without_access_to_peers_go_through_host_memory():
    through_host, peers = cluster("gpu-rtx-2080ti-x2"), cluster("gpu-t4-x2")
    payload = GIB
    assert all_reduce(payload, through_host, 2).seconds == pytest.approx(payload / 4.36e9, rel=0.01)
    assert all_reduce(payload, peers, 2).seconds == pytest.approx(payload / 12e9, rel=0.01)
