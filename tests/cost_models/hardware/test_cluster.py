"""Hardware values: one processor shared by several devices, memory limits, summaries."""

from cost_models.hardware.cluster import limited, share
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster


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


def test_a_share_of_the_smallest_cache_is_at_least_one_byte():
    tiny = from_mapping({"base": "cpu", "chip": {"cache_bytes": 4, "processors": 2}})
    part = share(tiny, 8)
    assert (part.chip.processors, part.chip.cache_bytes) == (1, 1)
    assert from_mapping(part.to_dict()) == part


def test_a_limit_leaves_less_memory_and_everything_else():
    alone = cluster("cpu")
    less = limited(alone, alone.chip.usable_memory_bytes // 4)
    assert less.chip.usable_memory_bytes == alone.chip.usable_memory_bytes // 4
    assert less.chip.sources["usable_memory_bytes"] == "the requested limit"
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
