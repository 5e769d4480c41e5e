"""Clusters of the published rows: the catalogue's, and cards that it lacks, from their data sheets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cost_models.hardware.cluster import Cluster
from cost_models.hardware.description import from_mapping
from cost_models.hardware.efficiency import Efficiency, FusedAttention, efficiency_of
from cost_models.hardware.lookup import cluster

# Data sheets: NVIDIA Turing (2018) and Ampere GA102 (2020) white papers; torchtitan's note on its H100s.
# The memory of a DGX-2's V100: one test copies 851 GB/s in it (wohlbier/gpu-micro, README) and 750 in a V100 of 900
# (ginkgo issue 164).
# (base, float32, 16-bit products with float32 sums, bytes a second, GiB, cores, lanes, clock)
_CARDS = {
    "quadro-rtx-8000": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 48, 72, 64, 1.77e9),
    "quadro-rtx-6000": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 24, 72, 64, 1.77e9),
    "titan-rtx": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 24, 72, 64, 1.77e9),
    "rtx-3080": ("gpu-rtx-3090", 29.8e12, 59.5e12, 760e9, 10, 68, 128, 1.71e9),
    "rtx-a5000": ("gpu-a6000", 55.6e12, 111.1e12, 768e9, 24, 64, 128, 1.695e9),
    "a40": ("gpu-a6000", 74.8e12, 149.7e12, 696e9, 48, 84, 128, 1.74e9),
    "v100-sxm3": ("gpu-v100-32gb", 15.7e12, 125e12, 1.021e12, 32, 80, 64, 1.53e9),
    "h100-hbm2e": ("gpu-h100-80gb", 494.5e12, 989e12, 2.4e12, 96, 132, 128, 1.98e9),
}  # fmt: skip
_PRODUCTS = {
    "quadro-rtx-8000": (0.672, 0.767),
    "quadro-rtx-6000": (0.672, 0.767),
    "titan-rtx": (0.70, 0.815),
    "rtx-3080": (1.077, 1.075),
    "rtx-a5000": (0.876, 0.88),
    "a40": (0.806, 0.796),
    "v100-sxm3": (0.80, 0.86),
    "h100-hbm2e": (0.633, 0.64),
}
"""What the best products reach of those rates in 16 bits and in float32 or TF32 (source gemm-cards of
`devices/efficiency.yaml`). Cards that were not measured lie between two of the same process, on the line through
their watts and rates in logarithms: T4 (70 W, 42.2 TFLOP/s, 4.3 in float32) and V100 (300 W, 94.8 and 14.1) for
Turing's 260 and 280 W; A4000 (140 W, 65.4) and A40 (300 W, 120.7); H100 PCIe (350 W, 484) and SXM (700 W, 797). One
entry of a Titan RTX falls from 66 to 40 TFLOP/s between sizes and was not used: that card throttled."""
_FLASH_2_ON_HOPPER = FusedAttention(
    full={64: (0.304, 200), 128: (0.348, 190)}, causal={64: (0.296, 545), 128: (0.337, 530)}, forward_over_backward=1.16
)
"""FlashAttention-2 on an H100: bars of 512 to 16384 in assets/flash2_h100_fwd_bwd_benchmark.png of
github.com/Dao-AILab/flash-attention, within 2%; passes apart as on an A100."""
_TRITON = (1.4, 2.0)
"""How many times longer FlashAttention in Triton takes, forward and backward, than FlashAttention-2 (Dao 2023, arXiv
2307.08691, section 4.1: "around 1.3-1.5x" and "around 2x")."""


_BRIDGE = {
    "kind": "host",
    "bytes_per_second": 5.0e10,
    "latency_seconds": 5e-06,
    "launch_seconds": 4.5e-05,
    "efficiency": 0.43,
}
"""Two Turing cards with a bridge: 21.5 GB/s (NVIDIA/nccl-tests, issue 44) of 50."""
_PEERS = {
    "kind": "host",
    "bytes_per_second": 1.6e10,
    "latency_seconds": 5e-06,
    "launch_seconds": 4.5e-05,
    "efficiency": 0.75,
}
"""Quadro cards over PCIe 3, whose drivers allow access to peers: as the catalogue's T4."""


@cache
def machine(chip: str, devices: int, per_host: int, *, bridged: bool = False) -> Cluster:
    """`devices` of a chip, `per_host` in each host; a TPU's slice holds as many. Bridges join pairs of cards."""
    found = _machine(chip, devices, per_host)
    if bridged and devices == 2:
        return from_mapping(found.to_dict() | {"inner_link": _BRIDGE})
    if devices > 1 and chip.startswith("quadro"):
        return from_mapping(found.to_dict() | {"inner_link": _PEERS})
    return found


def _machine(chip: str, devices: int, per_host: int) -> Cluster:
    if chip.startswith("tpu"):
        cores = 2 if chip in ("tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5p") else 1
        return cluster(f"{chip}-{devices * cores}")
    name = _CARDS[chip][0] if chip in _CARDS else chip
    hosts = devices // per_host
    found = cluster(name + (f"-x{per_host}" if per_host > 1 else "") + (f"-n{hosts}" if hosts > 1 else ""))
    if chip not in _CARDS:
        return found
    _, single, half, rate, gib, *_ = _CARDS[chip]
    known, ampere = found.to_dict(), "bfloat16" in found.chip.peak_flops_per_second
    known["chip"] |= {
        "peak_flops_per_second": {"float32": single, "float16": half} | ({"bfloat16": half} if ampere else {}),
        "memory_bytes_per_second": rate,
        "memory_bytes": gib * 2**30,
        "usable_memory_bytes": gib * 2**30,
    }
    return from_mapping(known)


def efficiency(chip: str, place: Cluster, *, attention: str = "") -> Efficiency:
    """The chip's curves; with those of the row's own kernels for attention: "flash-2" or "triton", both without what
    Hopper brought."""
    found = efficiency_of(place)
    if chip in _CARDS:
        *_, cores, lanes, clock_hz = _CARDS[chip]
        found = replace(found, cores=cores, lanes=lanes, clock_hz=clock_hz)
        product, product_float32 = _PRODUCTS[chip]
        found = replace(found, gemm_share=product, float32_gemm_share=product_float32)
    if attention and "float8" in place.chip.peak_flops_per_second:
        found = replace(found, attention=_FLASH_2_ON_HOPPER)
    return replace(found, attention=found.attention.slower(*_TRITON)) if attention == "triton" else found
