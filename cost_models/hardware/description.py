"""Reads a `Cluster` from plain values: a user's hardware file, or a message between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import Chip, Cluster, Link
from cost_models.hardware.lookup import cluster
from cost_models.validation import (
    flag,
    mapping,
    memory,
    number,
    optional,
    raised_as,
    read_mapping,
    several,
    text,
    whole,
)

_CHIP_FIGURES = ("peak_flops_per_second", "memory_bytes", "memory_bytes_per_second")
_CHIP = {
    "name": text,
    "kind": text,
    "peak_flops_per_second": mapping,
    "memory_bytes": memory,
    "usable_memory_bytes": memory,
    "memory_bytes_per_second": number,
    "kernel_launch_seconds": number,
    "dispatch_seconds": number,
    "compute_capability": optional(number),
    "fresh_page_bytes_per_second": optional(number),
    "host_micro_step_seconds": optional(number),
    "host_variable_seconds": optional(number),
    "processors": optional(whole),
    "cache_bytes": optional(memory),
    "sources": mapping,
}
_LINK_FIGURES = ("kind", "bytes_per_second", "latency_seconds")
_LINK = {
    "kind": text,
    "bytes_per_second": number,
    "latency_seconds": number,
    "source": text,
    "launch_seconds": number,
    "efficiency": number,
}
_CLUSTER = {
    "name": text,
    "chip": mapping,
    "devices": whole,
    "hosts": whole,
    "inner_link": optional(mapping),
    "outer_link": optional(mapping),
    "topology": several(whole),
    "wraparound": several(flag),
    "simulated": flag,
    "local": flag,
}


def from_mapping(data: Mapping[str, Any]) -> Cluster:
    """Return the cluster of plain values, as in a hardware file: the keys of `Cluster.to_dict`.

    With `base: <catalogue name>` the other keys change that cluster; without it `chip` and its figures are required.
    HardwareError names an unknown or missing key, or a wrong value and what was expected.
    """
    if not isinstance(data, Mapping):
        raise HardwareError("a hardware description must be a mapping with the keys name, chip and devices")
    with raised_as(HardwareError):
        return _from_mapping(dict(data))


def _from_mapping(given: dict[str, Any]) -> Cluster:
    if "base" in given:
        given = _over(cluster(text(given.pop("base"), "base")).to_dict(), given)
    values = read_mapping(given, "hardware", _CLUSTER, required=("name", "chip", "devices"))
    chip = read_mapping(values["chip"], "chip", _CHIP, required=("name", "kind", *_CHIP_FIGURES))
    chip["peak_flops_per_second"] = read_mapping(chip["peak_flops_per_second"], "chip.peak_flops_per_second", number)
    chip.setdefault("usable_memory_bytes", chip["memory_bytes"])
    values["chip"] = Chip(**{"kernel_launch_seconds": 0.0, "dispatch_seconds": 0.0, **chip})
    for key in ("inner_link", "outer_link"):
        if values.get(key) is not None:
            values[key] = Link(**read_mapping(values[key], key, _LINK, required=_LINK_FIGURES))
    return Cluster(**values)


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`; nested mappings are merged key by key."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
