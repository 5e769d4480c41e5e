"""Hardware names and this machine -> Cluster: the only place that asks this machine anything.

Rates of this machine come from a profile that a worker process measured (`worker/probe.py`); it is kept in the user's
cache directory under a key of everything that could change it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import yaml

from autoplan.errors import HardwareError
from autoplan.machine import cgroups
from autoplan.machine.processes import processors
from cost_models.errors import SchemaError
from cost_models.hardware.catalogue import row_of_device_kind
from cost_models.hardware.cluster import Chip, Cluster, Link, share
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster
from cost_models.validation import Reader, mapping, number, optional, positive, read_mapping, several, text, whole

LOCAL = "local"
_PROFILE_SCHEMA = 3
_LARGEST_BYTES = 2**20
"""Of a hardware file."""
_BUSY = 0.75
"""Processes a processor from which on other work takes a good part of what is measured."""
_RATES_BY_SIZE = partial(read_mapping, readers=positive(number))
_ALL_REDUCE = {"devices": whole, "payload_bytes": number, "seconds": number}
_NEEDED: dict[str, Reader] = {
    "platform": text,
    "device_kind": text,
    "backend": text,
    "date": text,
    "versions": mapping,
    "devices": positive(whole),
    "matmul_flops_per_second": partial(read_mapping, readers=_RATES_BY_SIZE),
    "memory_bytes_per_second": positive(number),
    "kernel_launch_seconds": number,
    "dispatch_seconds": number,
    "usable_memory_bytes": optional(positive(whole)),
    "all_reduce": several(partial(read_mapping, readers=_ALL_REDUCE, required=tuple(_ALL_REDUCE))),
}
"""What a profile must have, whoever wrote it."""
_OPTIONAL: dict[str, Reader] = {
    "host_micro_step_seconds": optional(number),
    "host_variable_seconds": optional(number),
    "fresh_page_bytes_per_second": optional(positive(number)),
    "processors": optional(positive(whole)),
    "cache_bytes": optional(positive(whole)),
}
_VERSIONS = ("jax", "jaxlib", "tensorflow", "tensorflow-cpu", "torch", "keras")
_SETTINGS = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION", "OMP_NUM_THREADS")


def is_here(name: str) -> bool:
    """Whether a hardware name means the machine in front of us, so that trials can run."""
    return name.strip().lower() == LOCAL


def resolve(name: str, *, devices: int | None = None, profile: Mapping[str, Any] | None = None) -> Cluster:
    """The cluster that `--hardware NAME` with `--devices N` means.

    name      `local`, `cpu`, a name of the catalogue, or the path of a YAML file with the keys of `Cluster.to_dict`
    devices   on `local` without accelerators and on `cpu`: that many simulated devices; on `local` with accelerators:
              so many of them; elsewhere the name already says it, and another number is an error
    profile   what the probe returned; needed for `local`

    HardwareError says what was wrong with the name, the file or the number.
    """
    if devices is not None and devices < 1:
        raise HardwareError(f"--devices {devices}: expected a whole number of at least 1")
    if is_here(name):
        return _local(profile, devices)
    found = _from_file(Path(name)) if _is_path(name) else cluster(name)
    if devices is None or devices == found.devices:
        return found
    if found.chip.kind == "cpu" and found.devices == 1:
        return share(found, devices)
    raise HardwareError(
        f"{found.name} has {found.devices} devices, and --devices asks for {devices}; leave --devices out, or name "
        "hardware of the size you mean"
    )


def memory_bytes(root: Path = Path("/")) -> int:
    """What processes here may use: physical memory, or less where a control group limits it (versions 1 and 2).

    `root` is where `/proc` and `/sys` are looked for.
    """
    return min([psutil.virtual_memory().total, *cgroups.limits_bytes(root)])


def profile_cache_path(backend: str = "jax", devices: int | None = None) -> Path:
    """Where the profile of this machine lies: one file for each backend, number of simulated devices, processor, memory
    limit, accelerators, settings that change speed, and versions."""
    facts = json.dumps(_facts(backend, devices), sort_keys=True)
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "autoplan" / "profiles" / f"{hashlib.sha256(facts.encode()).hexdigest()[:20]}.json"


def load_profile(backend: str = "jax", devices: int | None = None) -> dict[str, Any] | None:
    """The profile measured here before under the same conditions; None if there is none that can be read."""
    try:
        profile = json.loads(profile_cache_path(backend, devices).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    current = isinstance(profile, dict) and profile.get("schema") == _PROFILE_SCHEMA
    return profile if current and _fault(profile) is None else None


def measured_when_busy(profile: Mapping[str, Any]) -> bool:
    """Whether a profile was measured beside other work of which there is much less now: its rates are too low."""
    then = profile.get("load_average")
    if not isinstance(then, int | float) or not hasattr(os, "getloadavg"):
        return False
    return then > _BUSY * processors() and os.getloadavg()[0] < then / 2


def save_profile(profile: Mapping[str, Any], backend: str = "jax", devices: int | None = None) -> Path | None:
    """Keep a profile for the next time. None where the cache cannot be written: the next run then measures again."""
    path = profile_cache_path(backend, devices)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(dict(profile), indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        return None
    return path


def identity(cluster: Cluster) -> dict[str, Any]:
    """What tells one hardware's figures from another's: `local` is another one on every machine."""
    named = {"name": cluster.name, "chip": cluster.chip.name}
    return {**named, "processors": processors()} if cluster.local else named


def settings() -> dict[str, str]:
    """Variables of the environment that change how fast or how large programs are; "not set" where one is not."""
    return {name: os.environ.get(name, "not set") for name in _SETTINGS}


def processor_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _local(profile: Mapping[str, Any] | None, devices: int | None) -> Cluster:
    if profile is None:
        raise HardwareError("`local` needs this machine's profile, and there is none; run `autoplan hardware probe`")
    if fault := _fault(profile):
        raise HardwareError(f"this machine's profile cannot be read ({fault}); run `autoplan hardware probe`")
    on_processor = profile["platform"] == "cpu"
    return _local_processor(profile, devices) if on_processor else _local_accelerators(profile, devices)


def _fault(profile: Mapping[str, Any]) -> str | None:
    """What is wrong with a profile, as with any file that others may have written to; None where nothing is."""
    readers: dict[str, Reader] = {**_NEEDED, **_OPTIONAL}
    known = {key: value for key, value in profile.items() if key in readers}
    try:
        read_mapping(known, "the profile", readers, required=tuple(_NEEDED))
        text(profile["versions"].get(profile["backend"]), f"the profile.versions.{profile['backend']}")
    except SchemaError as error:
        return str(error)
    measured = any(profile["matmul_flops_per_second"].values())
    return None if measured else "the profile.matmul_flops_per_second is empty"


def _local_processor(profile: Mapping[str, Any], devices: int | None) -> Cluster:
    here = memory_bytes()
    chip = _measured_chip(profile, processor_name(), memory=here, usable=here)
    alone = Cluster(name=LOCAL, chip=chip, devices=1, local=True)
    count = devices or profile["devices"]
    return alone if count == 1 else share(alone, count, _measured_link(profile, count))


def _local_accelerators(profile: Mapping[str, Any], devices: int | None) -> Cluster:
    there = profile["devices"]
    count = devices or there
    if count > there:
        raise HardwareError(f"--devices asks for {count}, and this machine has {there} of {profile['device_kind']}")
    row = row_of_device_kind(profile["device_kind"])
    published = cluster(row.key if row.kind == "gpu" else f"{row.key}-{min(row.slices)}") if row else None
    usable = profile["usable_memory_bytes"] or (published.chip.usable_memory_bytes if published else None)
    if usable is None:
        raise HardwareError(f"{profile['device_kind']} does not tell its memory, and the catalogue does not know it")
    memory = max(usable, published.chip.memory_bytes if published else 0)
    chip = _measured_chip(profile, profile["device_kind"], memory=memory, usable=usable)
    if published:
        chip = replace(chip, compute_capability=published.chip.compute_capability)
    link = _measured_link(profile, count)
    if link is None and published and published.inner_link and not published.topology:
        link = published.inner_link
    return Cluster(name=LOCAL, chip=chip, devices=count, inner_link=link, local=True)


def _measured_chip(profile: Mapping[str, Any], name: str, *, memory: int, usable: int) -> Chip:
    how = (
        f"achieved here, measured {profile['date']} with {profile['backend']} {profile['versions'][profile['backend']]}"
    )
    rates = profile["matmul_flops_per_second"]
    return Chip(
        name=name,
        kind=profile["platform"],
        peak_flops_per_second={dtype: max(by_size.values()) for dtype, by_size in rates.items() if by_size},
        memory_bytes=memory,
        usable_memory_bytes=usable,
        memory_bytes_per_second=profile["memory_bytes_per_second"],
        kernel_launch_seconds=profile["kernel_launch_seconds"],
        dispatch_seconds=profile["dispatch_seconds"],
        fresh_page_bytes_per_second=profile.get("fresh_page_bytes_per_second"),
        host_micro_step_seconds=profile.get("host_micro_step_seconds"),
        host_variable_seconds=profile.get("host_variable_seconds"),
        processors=profile.get("processors"),
        cache_bytes=profile.get("cache_bytes"),
        sources={
            "peak_flops_per_second": f"best of square products, {how}; no peak of a data sheet",
            "memory_bytes_per_second": f"reading and writing a large array, {how}",
            "kernel_launch_seconds": f"chain of tiny products, {how}",
            "dispatch_seconds": f"burst of tiny programs, {how}",
            "fresh_page_bytes_per_second": f"first touch of mapped memory, {how}",
            "host_micro_step_seconds": f"fits of tiny models, {how}",
            "host_variable_seconds": f"fits of tiny models, {how}",
            "processors": "that this process may use",
            "cache_bytes": "the last level, as the kernel tells it",
            "usable_memory_bytes": "the runtime's limit"
            if usable != memory
            else "physical memory or control group limit",
        },
    )


def _measured_link(profile: Mapping[str, Any], devices: int) -> Link | None:
    """The link that two all-reduces show: a fixed part and a rate. None if none was measured over `devices`."""
    seen = sorted((r["payload_bytes"], r["seconds"]) for r in profile["all_reduce"] if r["devices"] == devices)
    if len(seen) < 2 or seen[-1][1] <= seen[0][1]:
        return None
    (_, fixed), (payload, seconds) = seen[0], seen[-1]
    simulated = profile["platform"] == "cpu"
    moved = 2 * payload if simulated else 2 * payload * (devices - 1) / devices
    return Link(
        kind="memory" if simulated else "switch",
        bytes_per_second=moved / (seconds - fixed),
        latency_seconds=0.0,
        launch_seconds=fixed,
        source=f"all-reduces over {devices} devices, achieved here, measured {profile['date']}",
    )


def _is_path(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml")) or "/" in name or os.sep in name


def _from_file(path: Path) -> Cluster:
    try:
        if path.exists() and not path.is_file():
            raise HardwareError(f"{path} is not a regular file; expected a hardware file in YAML")
        if path.stat().st_size > _LARGEST_BYTES:
            raise HardwareError(
                f"{path} holds more than {_LARGEST_BYTES // 2**20} MiB; expected a hardware file in YAML"
            )
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HardwareError(f"there is no hardware file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(f"the hardware file {path} cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # numbers and dates too large, lists without end
        raise HardwareError(f"the hardware file {path} is no YAML: {' '.join(str(error).split())}") from None
    try:
        return from_mapping(data)
    except HardwareError as error:
        raise HardwareError(f"{path}: {error}") from None


def _facts(backend: str, devices: int | None) -> dict[str, Any]:
    return {
        "schema": _PROFILE_SCHEMA,
        "backend": backend,
        "devices": devices,
        "host": platform.node(),
        "processor": processor_name(),
        "cpus": processors(),
        "memory_bytes": memory_bytes(),
        "accelerators": _accelerators(Path("/")),
        "settings": settings(),
        "versions": {name: _version(name) for name in _VERSIONS},
    }


def _accelerators(root: Path) -> list[str]:
    """What can be seen of accelerators without a driver: NVIDIA's and AMD's kernel entries and TPU device files."""
    nvidia = [path.name for path in root.glob("proc/driver/nvidia/gpus/*")]
    amd = [path.name for path in root.glob("sys/class/kfd/kfd/topology/nodes/*")]
    tpu = [path.name for path in root.glob("dev/accel*")]
    return sorted(nvidia + amd + tpu)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
