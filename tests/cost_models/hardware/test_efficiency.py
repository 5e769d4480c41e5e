"""The file of efficiencies: every share is one, every figure has a source, every chip is in the catalogue."""

from dataclasses import fields, replace

import numpy as np
import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import CHIP_KINDS
from cost_models.hardware.efficiency import Efficiency, efficiency_of, efficiency_table
from cost_models.hardware.lookup import cluster as published
from cost_models.hardware.lookup import known
from tests.builders.workloads import cluster


@pytest.mark.parametrize("kind", CHIP_KINDS)
def test_every_kind_of_chip_has_shares_that_are_shares(kind):
    found = efficiency_of(cluster(kind))
    for share in (found.gemm_share, found.stream_share, found.overlap, found.vector_share):
        assert 0 < share <= 1
    assert 0 < found.depthwise_share <= 1 or all(operations > 0 for operations in found.looped_conv_operations.values())
    for causal in (False, True):
        passes = found.attention.shares(np.array([16384.0]), np.array([128.0]), causal=causal)
        assert all(0 < share[0] <= 1 for share in passes)


def test_chips_are_the_catalogues_and_name_their_sources():
    data = efficiency_table()
    keys = {row.key for row in known()}
    for name, figures in data["chips"].items():
        assert name in keys
        assert set(figures["source"].split(", ")) <= set(data["sources"])
    for figures in data["kinds"].values():
        assert all(figure["source"] in data["sources"] for figure in figures.values())


def test_every_key_of_the_table_is_a_field():
    table = efficiency_table()
    known = {item.name for item in fields(Efficiency)}
    for rows in (table["kinds"], table["measured"]):
        assert all(set(figures) <= known for figures in rows.values())
    assert all(set(figures) <= known | {"matrix", "source"} for figures in table["chips"].values())


@pytest.mark.parametrize("name", ["gpu-v100-16gb", "gpu-a100-40gb", "gpu-h100-80gb", "gpu-rtx-3090"])
def test_vector_units_make_the_float32_rate_of_the_data_sheets(name):
    expected = {"gpu-v100-16gb": 15.7e12, "gpu-a100-40gb": 19.5e12, "gpu-h100-80gb": 67e12, "gpu-rtx-3090": 35.6e12}
    assert 2 * efficiency_of(published(name)).vector_operations_per_second == pytest.approx(expected[name], rel=0.01)


def test_thin_groups_are_fed_by_a_cores_local_memory():
    a100 = efficiency_of(published("gpu-a100-40gb"))
    both = np.array([2.0, 4.0])
    half, single = a100.grouped_conv_flops_per_second(np.full(2, 312e12), both, np.full(2, 4.0), np.full(2, True))
    assert half == pytest.approx(2 * 108 * 64 * 1.41e9)
    assert single == pytest.approx(half / 2)


@pytest.mark.parametrize("item_bytes", [2.0, 4.0])
def test_depthwise_convolutions_take_as_long_as_they_were_seen_to_take(item_bytes):
    """pytorch issue 75747: 32 x 768 sequences of 768, windows of 768, on an RTX 3090."""
    card = efficiency_of(published("gpu-rtx-3090"))
    passes = np.array([False, True])
    forward, backward = card.grouped_conv_flops_per_second(
        np.full(2, 71e12), np.full(2, item_bytes), np.ones(2), passes
    )
    multiply_adds = 32 * 768 * 768 * 768
    assert 2 * multiply_adds / forward == pytest.approx(14e-3, rel=0.05)
    assert 2 * 2 * multiply_adds / backward == pytest.approx(65e-3, rel=0.05)


_LENGTHS = 2.0 ** np.arange(9, 15)
_BARS = {
    (64, False): [132, 153, 162, 171, 175, 176],
    (128, False): [151, 173, 187, 196, 201, 203],
    (64, True): [88, 119, 140, 156, 165, 171],
    (128, True): [99, 133, 155, 173, 182, 189],
}
"""TFLOP/s of both passes on an A100 (README of FlashAttention, flash2_a100_fwd_bwd_benchmark.png)."""


@pytest.mark.parametrize(("width", "causal"), _BARS)
def test_fused_attention_reaches_what_its_authors_measured(width, causal):
    card = efficiency_of(published("gpu-a100-80gb"))
    forward, backward = card.attention.shares(_LENGTHS, np.full(len(_LENGTHS), width), causal=causal)
    both = 3.5 / (1 / forward + 2.5 / backward)  # a product of the forward pass, two and a half of the backward pass
    assert 312 * both == pytest.approx(_BARS[width, causal], rel=0.02)
    assert forward / backward == pytest.approx(np.full(len(_LENGTHS), 73 / 63), rel=0.01)


def test_slower_kernels_of_attention_take_as_many_times_longer_in_each_pass():
    curves = efficiency_of(published("gpu-a100-80gb")).attention
    at = np.array([2048.0]), np.array([128.0])
    passes = zip(curves.shares(*at, causal=True), curves.slower(1.4, 2.0).shares(*at, causal=True), strict=True)
    assert [(fast / slow)[0] for fast, slow in passes] == pytest.approx([1.4, 2.0])


def test_a_measured_machine_reaches_its_own_figures():
    local = efficiency_of(cluster("gpu", local=True))
    assert (local.gemm_share, local.stream_share, local.overlap) == (1, 1, 1)


def test_programs_on_a_measured_processor_reach_its_products_and_a_part_of_its_stream():
    local = efficiency_of(cluster("cpu", local=True))
    assert local.gemm_share == 1
    assert all(0 < share < 1 for _, share in local.cache_curve)
    assert local.overlap == 0  # one thread at a time reads or calculates
    assert 0 < local.conv_share < 1


def test_an_undescribed_kind_is_an_error_that_lists_the_known():
    strange = cluster("gpu")
    object.__setattr__(strange.chip, "kind", "npu")
    with pytest.raises(HardwareError, match="'npu' device; known kinds are gpu, tpu, cpu"):
        efficiency_of(replace(strange))


def test_the_shared_cache_is_as_fast_as_it_was_measured_or_so_many_times_the_memory():
    measured, unknown = (efficiency_of(published(name)) for name in ("gpu-h100-80gb-pcie", "gpu-t4"))
    assert measured.l2_bytes_per_second(2e12) == pytest.approx(7.0e12, rel=0.01)
    assert unknown.l2_bytes_per_second(3e11) == 2.5 * 3e11
