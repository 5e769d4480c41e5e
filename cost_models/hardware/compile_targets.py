"""Returns the compile target of a cluster; a new GPU needs a row in `devices/xla_gpu.yaml`, a new TPU nothing.

XLA:TPU takes the name of a topology. XLA:GPU takes a description of the chip (`devices/xla_gpu.yaml`). A CPU compiles
for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Chips whose two cores are one JAX device. libtpu separates them unless the configuration says "megacore"."""
_TPU_NAMES = {"tpu-v7x": "TPU7x"}
"""Generations that have another name in libtpu's topologies."""
_DIMENSIONS = 3


@dataclass(frozen=True)
class CompilerTarget:
    """One target of one compiler.

    platform   "tpu", "cuda" or "cpu", as JAX's `get_topology_desc` takes it
    topology   name of the target: "v4:2x2x1", "1x1x8"
    devices    number of JAX devices
    arguments  further arguments of `get_topology_desc`
    """

    platform: str
    topology: str
    devices: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for messages between processes."""
        return {
            "platform": self.platform,
            "topology": self.topology,
            "devices": self.devices,
            "arguments": dict(self.arguments),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompilerTarget:
        """Return the target that `to_dict` wrote."""
        return cls(**data)

    @property
    def name(self) -> str:
        """The name for messages: "XLA:TPU v4:2x2x1"."""
        compiler = {"tpu": "XLA:TPU", "cuda": "XLA:GPU", "cpu": "XLA:CPU"}[self.platform]
        described = self.arguments.get("topology_name", "") if self.platform == "cuda" else ""
        return " ".join(part for part in (compiler, described, self.topology) if part)


def compiler_target(cluster: Cluster) -> CompilerTarget:
    """Return the compile target of a cluster.

    HardwareError for hardware without a known compile target.
    """
    return _TARGETS[cluster.chip.kind](cluster)


def compilable() -> tuple[str, ...]:
    """Return the GPUs of the catalogue for which XLA:GPU can compile."""
    return tuple(f"gpu-{key}" for key in _descriptions()["chips"])


def _named(cluster: Cluster) -> Name:
    """Return the catalogue name of a cluster. Local devices are identified by their device kind."""
    if cluster.local:
        row = row_of_device_kind(cluster.chip.name)
        if row is None or row.kind != "gpu":
            raise HardwareError(
                f"no compile target is known for the local {cluster.chip.name}; give its name from "
                "`autoplan hardware list` to compile for it"
            )
        return Name(row, chips_per_host=cluster.devices)
    try:
        return parse(cluster.name)
    except HardwareError:
        raise HardwareError(
            f"no compile target is known for '{cluster.name}', which a file describes; give a name from "
            "`autoplan hardware list`"
        ) from None


def _cpu(cluster: Cluster) -> CompilerTarget:
    return CompilerTarget("cpu", "host", cluster.devices)


def _tpu(cluster: Cluster) -> CompilerTarget:
    found = _named(cluster)
    part = found.slice
    if part is None:
        raise HardwareError(f"'{found.canonical}' names no slice, and XLA:TPU needs its topology")
    generation = _TPU_NAMES.get(found.row.key, found.row.key.removeprefix("tpu-"))
    topology = f"{generation}:{'x'.join(map(str, part.topology))}"
    arguments: dict[str, Any] = {}
    if found.row.key in _MEGACORE:
        arguments["chip_config_name"] = "megacore"
    if part.hosts == 1:  # libtpu assumes hosts of 2x2 chips
        arguments["chips_per_host_bounds"] = [*part.topology, *[1] * (_DIMENSIONS - len(part.topology))]
    return CompilerTarget("tpu", topology, prod(part.topology) * found.row.devices_per_chip, arguments)


def _gpu(cluster: Cluster) -> CompilerTarget:
    found = _named(cluster)
    key = found.row.key
    described = _descriptions()["chips"].get(key.removeprefix("gpu-"))
    if described is None:
        raise HardwareError(
            f"XLA:GPU has no description of {found.row.title}, so it cannot compile for it with no device present; "
            f"it has descriptions of {', '.join(compilable())}"
        )
    return CompilerTarget(
        platform="cuda",
        topology=f"1x{found.hosts}x{found.chips_per_host}",
        devices=cluster.devices,
        arguments={"topology_name": key, "target_config": _target_config(described)},
    )


_TARGETS: Mapping[str, Callable[[Cluster], CompilerTarget]] = {"cpu": _cpu, "tpu": _tpu, "gpu": _gpu}


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
