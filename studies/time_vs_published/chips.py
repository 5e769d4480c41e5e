"""Clusters of the published rows: the catalogue's, and cards that it lacks, from their data sheets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cost_models.efficiency import Efficiency, efficiency_of
from cost_models.hardware import Cluster, cluster, from_mapping

# Data sheets: NVIDIA Turing (2018) and Ampere GA102 (2020) white papers; torchtitan's note on its H100s.
# (base, float32, 16-bit products with float32 sums, bytes a second, GiB, cores, lanes, clock)
_CARDS = {
    "quadro-rtx-8000": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 48, 72, 64, 1.77e9),
    "quadro-rtx-6000": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 24, 72, 64, 1.77e9),
    "titan-rtx": ("gpu-rtx-2080ti", 16.3e12, 130.5e12, 672e9, 24, 72, 64, 1.77e9),
    "rtx-3080": ("gpu-rtx-3090", 29.8e12, 59.5e12, 760e9, 10, 68, 128, 1.71e9),
    "rtx-a5000": ("gpu-a6000", 55.6e12, 111.1e12, 768e9, 24, 64, 128, 1.695e9),
    "a40": ("gpu-a6000", 74.8e12, 149.7e12, 696e9, 48, 84, 128, 1.74e9),
    "h100-hbm2e": ("gpu-h100-80gb", 494.5e12, 989e12, 2.4e12, 96, 132, 128, 1.98e9),
}  # fmt: skip
_FLASH_2_ON_HOPPER = (0.34, 490)
"""FlashAttention-2 on an H100 reaches 335 of 989 TFLOP/s over both passes (Dao 2023)."""


@cache
def machine(chip: str, devices: int, per_host: int) -> Cluster:
    """`devices` of a chip, `per_host` in each host; a TPU's slice holds as many."""
    if chip.startswith("tpu"):
        cores = 2 if chip in ("tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5p") else 1
        return cluster(f"{chip}-{devices * cores}")
    name = _CARDS[chip][0] if chip in _CARDS else chip
    hosts = devices // per_host
    found = cluster(name + (f"-x{per_host}" if per_host > 1 else "") + (f"-n{hosts}" if hosts > 1 else ""))
    if chip not in _CARDS:
        return found
    _, single, half, rate, gib, *_ = _CARDS[chip]
    known = found.to_dict()
    known["chip"] |= {
        "peak_flops_per_second": {"float32": single, "float16": half, "bfloat16": half},
        "memory_bytes_per_second": rate,
        "memory_bytes": gib * 2**30,
        "usable_memory_bytes": gib * 2**30,
    }
    return from_mapping(known)


def efficiency(chip: str, place: Cluster, *, flash_2: bool) -> Efficiency:
    """The chip's curves; with the kernels of FlashAttention-2 where the row's library is that."""
    found = efficiency_of(place)
    if chip in _CARDS:
        *_, cores, lanes, clock_hz = _CARDS[chip]
        found = replace(found, cores=cores, lanes=lanes, clock_hz=clock_hz)
    hopper = "bfloat16" in place.chip.peak_flops_per_second and "float8" in place.chip.peak_flops_per_second
    return replace(found, attention=_FLASH_2_ON_HOPPER) if flash_2 and hopper else found
