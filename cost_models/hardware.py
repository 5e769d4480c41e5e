"""Chip, Link, Cluster: hardware as data. The catalogue lives in `devices/*.yaml`, one family a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Chip:
    """What one JAX device offers. `None` is "not published", never zero.

    peak_flops_per_second      by compute dtype ("float32", "bfloat16", "float16", ...), dense, of one device
    memory_bytes               what the device holds
    usable_memory_bytes        what the runtime leaves to a program (the capacity that plans are held against)
    memory_bytes_per_second    main-memory bandwidth
    kind                       "tpu" | "gpu" | "cpu"
    """

    name: str
    kind: str
    peak_flops_per_second: Mapping[str, float]
    memory_bytes: int
    usable_memory_bytes: int
    memory_bytes_per_second: float
    kernel_launch_seconds: float
    dispatch_seconds: float
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """A way between devices: `kind` is "torus" | "mesh" | "switch" | "network" | "host"; bytes a second one way, a device."""

    kind: str
    bytes_per_second: float
    latency_seconds: float
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """The devices that one training job may use.

    devices_per_host x hosts == devices. `topology` is the torus shape of a TPU slice in chips, else ().
    `wraparound` tells for each topology axis whether it closes. `simulated` devices share one real processor.
    """

    name: str
    chip: Chip
    devices: int
    hosts: int = 1
    inner_link: Link | None = None
    outer_link: Link | None = None
    topology: tuple[int, ...] = ()
    wraparound: tuple[bool, ...] = ()
    simulated: bool = False
    local: bool = False

    @property
    def devices_per_host(self) -> int:
        return self.devices // self.hosts

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for job messages and plans."""
        raise NotImplementedError
