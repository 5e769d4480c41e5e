"""Shares of the peak against hand arithmetic: a chip of ten cores whose blocks are 128 by 128."""

from dataclasses import replace

import numpy as np
import pytest

from cost_models.hardware.efficiency import efficiency_of
from cost_models.hardware.lookup import cluster as published
from cost_models.time.gemm import product_flops_share
from tests.builders.workloads import cluster

PEAK, BANDWIDTH = 1e14, 1e12
TEN = replace(
    efficiency_of(cluster("gpu")), gemm_share=0.8, cores=10, tiles=((128, 128),), tile_depth=32, l2_over_memory=100
)


def share(*gemm, efficiency=TEN, item_bytes=2.0):
    arrays = np.array([gemm], float), np.array([PEAK]), np.array([item_bytes])
    return product_flops_share(*arrays, BANDWIDTH, efficiency)[0]


def test_blocks_that_fill_all_cores_reach_what_the_best_product_reaches():
    assert share(1, 1280, 1280, 4096) == pytest.approx(0.8)
    assert share(10, 128, 128, 4096) == pytest.approx(0.8)


def test_the_last_wave_costs_as_much_as_a_full_one():
    assert share(1, 11 * 128, 128, 512) == pytest.approx(0.8 * 11 / 20)


def test_a_long_sum_is_split_over_the_cores():
    assert share(1, 128, 128, 512) == pytest.approx(0.8 / 10)
    assert share(1, 128, 128, 512 * 8) == pytest.approx(0.8 * 8 / 10)


def test_a_block_that_is_not_filled_costs_as_a_full_one():
    assert share(10, 64, 128, 4096) == pytest.approx(0.4)
    assert share(10, 128, 128, 33) == pytest.approx(0.8 * 33 / 64)


def test_small_blocks_wait_for_the_cache():
    small = replace(TEN, tiles=((32, 32),), l2_over_memory=2.5)
    flops_per_byte = 2 * 32 * 32 / (64 * 2)
    assert share(1, 320, 320, 4096, efficiency=small) == pytest.approx(0.8 * flops_per_byte * 2.5 * BANDWIDTH / PEAK)


def test_where_cores_are_not_known_only_filling_counts():
    unknown = replace(TEN, cores=0)
    assert share(1, 128, 128, 32, efficiency=unknown) == pytest.approx(0.8)


def test_the_library_picks_the_blocks_that_end_first():
    several = replace(TEN, tiles=((128, 128), (128, 32)))
    assert share(10, 128, 32, 4096, efficiency=several) > share(10, 128, 32, 4096)


def test_float32_has_a_share_of_its_own_where_one_is_known():
    volta = replace(TEN, float32_gemm_share=0.75)
    assert share(1, 1280, 1280, 4096, efficiency=volta, item_bytes=4.0) == pytest.approx(0.75)
    assert share(1, 1280, 1280, 4096, efficiency=volta) == pytest.approx(0.8)


_DEEPBENCH = [
    ((2048, 7000, 2048), 12.8, 98.0), ((2560, 7000, 2560), 13.2, 104), ((4096, 7000, 4096), 14.5, 109),
    ((5124, 9124, 1760), 12.7, 94.4), ((5124, 9124, 4096), 13.7, 104), ((7680, 5481, 2560), 14.3, 109),
    ((6144, 24000, 2048), 13.1, 106), ((3072, 24000, 1024), 13.1, 93.8), ((512, 24000, 2048), 13.6, 99.5),
    ((1024, 24000, 1530), 13.0, 96.2), ((8448, 48000, 2816), 13.0, 108), ((4608, 48000, 1536), 14.0, 94.4),
]  # fmt: skip
"""(m, n, k), TFLOP/s in float32 and with 16-bit operands on a V100: DeepBench_NV_V100.xlsx."""


@pytest.mark.parametrize(("item_bytes", "peak", "column"), [(4.0, 15.7e12, 1), (2.0, 125e12, 2)])
def test_products_on_a_v100_take_as_long_as_deepbench_measured(item_bytes, peak, column):
    card = published("gpu-v100-16gb")
    gemm = np.array([[1.0, *row[0]] for row in _DEEPBENCH])
    many = np.ones(len(gemm))
    shares = product_flops_share(
        gemm, many * peak, many * item_bytes, card.chip.memory_bytes_per_second, efficiency_of(card)
    )
    ratios = np.log(shares * peak / 1e12 / [row[column] for row in _DEEPBENCH])
    assert abs(ratios.mean()) < 0.03
    assert abs(ratios).max() < 0.15


_SQUARES = {
    "gpu-rtx-2080ti": ("float16", 57.7), "gpu-rtx-3090": ("bfloat16", 75.7), "gpu-rtx-4090": ("bfloat16", 167),
    "gpu-a6000": ("bfloat16", 122), "gpu-a100-40gb-pcie": ("bfloat16", 238), "gpu-l4": ("bfloat16", 69.8),
}  # fmt: skip
"""TFLOP/s of the best squares (torch-performance-test-data, database.md), most of them of 8192 or 10240.
On Hopper, where cores of a cluster share what they read, the cache is priced as if they did not."""


@pytest.mark.parametrize("name", _SQUARES)
def test_large_squares_reach_what_was_measured_on_the_card(name):
    dtype, expected = _SQUARES[name]
    card = published(name)
    peak = np.array([card.chip.peak_flops_per_second[dtype]])
    square = np.array([[1.0, 8192.0, 8192.0, 8192.0]])
    bandwidth = card.chip.memory_bytes_per_second
    share_of_peak = product_flops_share(square, peak, np.array([2.0]), bandwidth, efficiency_of(card))
    assert share_of_peak[0] * peak[0] / 1e12 == pytest.approx(expected, rel=0.06)
