"""Estimates the share of peak FLOP/s that a GEMM reaches by its shape: tile and wave quantization, cache bandwidth.

A product of (groups, m, n, k) is cut into blocks of `tiles`, each a core's work; a library picks the cutting that ends
first. Three things make a small or odd product slow:

- quantization: a block that is not filled takes as long as a full one (NVIDIA, Matrix Multiplication Background);
- waves: blocks are dealt to cores in rounds, and the last round is rarely full; long sums are split over cores;
- the cache: a core that multiplies (m, n) blocks reads (m + n) elements for every m n multiply-adds, so that small
  blocks wait for the cache that all cores share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cost_models.hardware.efficiency import Efficiency
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]

_SPLITS = np.array([1, 2, 4, 8, 16, 32, 64])
_SHORTEST_SPLIT = 512
"""Elements of k below which splitting a sum further costs more in adding up than it gains."""


def product_flops_share(
    gemm: Floats,
    peak: Floats,
    item_bytes: Floats,
    memory_bytes_per_second: float,
    efficiency: Efficiency,
    applies: Callable[[str], bool] = lambda rule: True,
) -> Floats:
    """Return the share of the peak that each (groups, m, n, k) product reaches, at most `efficiency.gemm_share`.

    peak        FLOP/s of each product's dtype on the whole chip
    item_bytes  of each product's operands
    """
    groups, m, n, k = (np.maximum(gemm[:, column], 1.0) for column in range(4))
    tile_m, tile_n = (np.array(sides, np.float64)[:, np.newaxis] for sides in zip(*efficiency.tiles, strict=True))
    blocks = groups * np.ceil(m / tile_m) * np.ceil(n / tile_n)
    filled = filled_share(groups * m * n * k, blocks, tile_m, tile_n, k, efficiency)
    share = filled if applies("tile-quantization") else np.ones_like(filled)
    if applies("cache-bound-tiles"):
        share = share * cache_share(tile_m, tile_n, peak, item_bytes, memory_bytes_per_second, efficiency)
    if applies("wave-quantization"):
        share = share * wave_share(blocks, k, efficiency.cores)
    best = share.max(axis=0)
    most = np.where(item_bytes == 4, efficiency.float32_gemm_share or efficiency.gemm_share, efficiency.gemm_share)
    return np.asarray(best * most, np.float64)


@rule("tile-quantization", "NVIDIA, Matrix Multiplication Background User's Guide: tile quantization")
def filled_share(
    multiplied: Floats, blocks: Floats, tile_m: Floats, tile_n: Floats, k: Floats, efficiency: Efficiency
) -> Floats:
    """Return the share of blocks that products fill: a block that is not filled takes as long as a full one.

    multiplied  multiply-adds of each product
    """
    depth = np.ceil(k / efficiency.tile_depth) * efficiency.tile_depth
    return np.asarray(multiplied / (blocks * tile_m * tile_n * depth), np.float64)


@rule("cache-bound-tiles", "L2 bandwidths measured by microbenchmarks, sources in devices/efficiency.yaml")
def cache_share(
    tile_m: Floats,
    tile_n: Floats,
    peak: Floats,
    item_bytes: Floats,
    memory_bytes_per_second: float,
    reached: Efficiency,
) -> Floats:
    """Return the share of the peak at which the cache can feed blocks of each size, (tiles, products).

    1 where cores are not known.
    """
    if not reached.cores:
        return np.ones((len(tile_m), len(peak)))
    flops_per_byte = 2.0 * tile_m * tile_n / ((tile_m + tile_n) * item_bytes)
    return np.minimum(1.0, reached.l2_bytes_per_second(memory_bytes_per_second) * flops_per_byte / peak)


@rule("wave-quantization", "NVIDIA, Matrix Multiplication Background User's Guide: wave quantization; split-k")
def wave_share(blocks: Floats, k: Floats, cores: int) -> Floats:
    """Return the share of busy cores, on average over the waves, with the best number of splits along k.

    blocks  (tiles, products), as is the answer
    """
    if not cores:
        return np.ones_like(blocks)
    splits = _SPLITS[:, np.newaxis]
    allowed = (splits == 1) | (k / splits >= _SHORTEST_SPLIT)
    needed = int(allowed.any(axis=1).sum()) or 1  # fewer splits are allowed wherever more are; without a product, any
    parts = blocks[:, np.newaxis] * splits[:needed]
    busy = parts / (np.ceil(parts / cores) * cores)
    return np.asarray(np.where(allowed[:needed], busy, 0.0).max(axis=1), np.float64)
