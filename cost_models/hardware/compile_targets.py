"""Which compiler, and which target of it, stands for a cluster: what a compiler must be told where no device is.

XLA:TPU takes the name of a topology; XLA:GPU takes a description of the chip (`devices/xla_gpu.yaml`); a CPU compiles
for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import yaml

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import Name, parse, row_of_device_kind
from cost_models.hardware.cluster import Cluster

EXTRA = "compilers"
"""The extra of this distribution that brings XLA:TPU and XLA:GPU."""
_MEGACORE = frozenset({"tpu-v4", "tpu-v5p"})
"""Two cores that JAX shows as one device; libtpu's topologies have them apart unless told."""
_TPU_NAMES = {"tpu-v7x": "TPU7x"}
"""Generations whose topologies libtpu spells otherwise."""
_DIMENSIONS = 3


@dataclass(frozen=True)
class CompilerTarget:
    """One target of one compiler.

    platform   "tpu", "cuda" or "cpu", as JAX's `get_topology_desc` takes it
    topology   the name that tells targets apart: "v4:2x2x1", "1x1x8"
    devices    JAX devices that it has
    arguments  what else `get_topology_desc` is told
    """

    platform: str
    topology: str
    devices: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for job messages."""
        return {
            "platform": self.platform,
            "topology": self.topology,
            "devices": self.devices,
            "arguments": dict(self.arguments),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompilerTarget:
        """The inverse of `to_dict`."""
        return cls(**data)

    @property
    def name(self) -> str:
        """For people: "XLA:TPU v4:2x2x1"."""
        compiler = {"tpu": "XLA:TPU", "cuda": "XLA:GPU", "cpu": "XLA:CPU"}[self.platform]
        described = self.arguments.get("topology_name", "") if self.platform == "cuda" else ""
        return " ".join(part for part in (compiler, described, self.topology) if part)


def compiler_target(cluster: Cluster) -> CompilerTarget:
    """The compiler target that stands for a cluster.

    HardwareError for hardware that no compiler was described for, with the names that have one.
    """
    if cluster.chip.kind == "cpu":
        return CompilerTarget("cpu", "host", cluster.devices)
    found = _named(cluster)
    if cluster.chip.kind == "tpu":
        return _tpu(found)
    return _gpu(found, cluster)


def compilable() -> tuple[str, ...]:
    """The GPUs of the catalogue that XLA:GPU can be described."""
    return tuple(f"gpu-{key}" for key in _descriptions()["chips"])


def _named(cluster: Cluster) -> Name:
    """What the catalogue calls this cluster; for devices that are here, by what they call themselves."""
    if cluster.local:
        row = row_of_device_kind(cluster.chip.name)
        if row is None or row.kind != "gpu":
            raise HardwareError(
                f"no compiler target is known for {cluster.chip.name} as it stands here; give its name of "
                "`autoplan hardware list` to have it compiled for"
            )
        return Name(row, chips_per_host=cluster.devices)
    try:
        return parse(cluster.name)
    except HardwareError:
        raise HardwareError(
            f"no compiler target is known for '{cluster.name}', which a file describes; a compiler needs a chip that "
            "it knows: give a name of `autoplan hardware list`"
        ) from None


def _tpu(found: Name) -> CompilerTarget:
    part = found.slice
    if part is None:
        raise HardwareError(f"'{found.canonical}' names no slice, and a compiler needs its topology")
    generation = _TPU_NAMES.get(found.row.key, found.row.key.removeprefix("tpu-"))
    topology = f"{generation}:{'x'.join(map(str, part.topology))}"
    arguments: dict[str, Any] = {}
    if found.row.key in _MEGACORE:
        arguments["chip_config_name"] = "megacore"
    if part.hosts == 1:  # libtpu takes hosts of 2x2 chips for granted
        arguments["chips_per_host_bounds"] = [*part.topology, *[1] * (_DIMENSIONS - len(part.topology))]
    return CompilerTarget("tpu", topology, prod(part.topology) * found.row.devices_per_chip, arguments)


def _gpu(found: Name, cluster: Cluster) -> CompilerTarget:
    key = found.row.key
    described = _descriptions()["chips"].get(key.removeprefix("gpu-"))
    if described is None:
        raise HardwareError(
            f"XLA:GPU cannot be told what {found.row.title} is, so nothing can be compiled for it with no device "
            f"present; those it can be told are {', '.join(compilable())}"
        )
    return CompilerTarget(
        platform="cuda",
        topology=f"1x{found.hosts}x{found.chips_per_host}",
        devices=cluster.devices,
        arguments={"topology_name": key, "target_config": _target_config(described)},
    )


@cache
def _descriptions() -> Mapping[str, Any]:
    text = files("cost_models.hardware").joinpath("devices", "xla_gpu.yaml").read_text(encoding="utf-8")
    read: Mapping[str, Any] = yaml.safe_load(text)
    return read


def _target_config(described: Mapping[str, Any]) -> str:
    """A `GpuTargetConfigProto` in text form."""
    everywhere = _descriptions()
    of_chip = {k: v for k, v in described.items() if k not in ("description", "compute_capability")}
    lines = [f"  {name}: {value}" for name, value in {**everywhere["common"], **of_chip}.items()]
    major, minor = described["compute_capability"]
    runtime = everywhere["runtime"]
    dnn_major, dnn_minor = runtime["dnn_version"]
    runtime_major, runtime_minor = runtime["runtime_version"]
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}",
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ major: {dnn_major} minor: {dnn_minor} }}",
            f"runtime_version {{ major: {runtime_major} minor: {runtime_minor} }}",
            f'device_description_str: "{described["description"]}"',
        ]
    )
