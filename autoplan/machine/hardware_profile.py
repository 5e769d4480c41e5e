"""`HardwareProfile`: measured rates of this machine; loads and saves them in the user's cache directory.

The cache key covers everything that may change the rates: backend, devices, processor, memory limit, accelerators,
environment settings and package versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from autoplan.machine import this_machine
from cost_models.errors import SchemaError
from cost_models.validation import Reader, mapping, number, optional, positive, read_mapping, several, text, whole

SCHEMA = 3
_BUSY = 0.75
"""Load average per CPU core above which other work takes a large part of what is measured."""
_VERSIONS = ("jax", "jaxlib", "tensorflow", "tensorflow-cpu", "torch", "keras")


class AllReduceTime(TypedDict):
    """The measured time of one all-reduce."""

    devices: int
    payload_bytes: int
    seconds: float


class HardwareProfile(TypedDict):
    """Rates of one machine with one backend.

    matmul_flops_per_second      {dtype: {size: rate}}; an empty mapping for a dtype that the device does not support
    usable_memory_bytes          None if the runtime sets no limit
    fresh_page_bytes_per_second  on CPUs under glibc, else None
    host_micro_step_seconds, host_variable_seconds   time of `fit` on the host (JAX only)
    """

    schema: NotRequired[int]
    backend: str
    platform: str
    device_kind: str
    devices: int
    matmul_flops_per_second: dict[str, dict[str, float]]
    memory_bytes_per_second: float
    kernel_launch_seconds: float
    dispatch_seconds: float
    host_micro_step_seconds: NotRequired[float | None]
    host_variable_seconds: NotRequired[float | None]
    fresh_page_bytes_per_second: NotRequired[float | None]
    processors: NotRequired[int | None]
    cache_bytes: NotRequired[int | None]
    load_average: NotRequired[float | None]
    usable_memory_bytes: int | None
    all_reduce: list[AllReduceTime]
    versions: dict[str, str]
    date: str
    probe_seconds: NotRequired[float]


_RATES_BY_SIZE = partial(read_mapping, readers=positive(number))
_ALL_REDUCE = {"devices": whole, "payload_bytes": number, "seconds": number}
_REQUIRED: dict[str, Reader] = {
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
_OPTIONAL: dict[str, Reader] = {
    "host_micro_step_seconds": optional(number),
    "host_variable_seconds": optional(number),
    "fresh_page_bytes_per_second": optional(positive(number)),
    "processors": optional(positive(whole)),
    "cache_bytes": optional(positive(whole)),
}


def validated(profile: Mapping[str, object]) -> HardwareProfile:
    """Return a profile whose values have been checked, because other programs may have written to its file.

    SchemaError names the first value that is missing or invalid.
    """
    readers: dict[str, Reader] = {**_REQUIRED, **_OPTIONAL}
    known = {key: value for key, value in profile.items() if key in readers}
    read_mapping(known, "the profile", readers, required=tuple(_REQUIRED))
    checked = cast("HardwareProfile", profile)
    text(checked["versions"].get(checked["backend"]), f"the profile.versions.{checked['backend']}")
    if not any(checked["matmul_flops_per_second"].values()):
        raise SchemaError("the profile.matmul_flops_per_second is empty")
    return checked


def cache_path(backend: str = "jax", devices: int | None = None) -> Path:
    """Return the file that caches the profile of this machine.

    devices  number of simulated devices
    """
    facts = json.dumps(_facts(backend, devices), sort_keys=True)
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "autoplan" / "profiles" / f"{hashlib.sha256(facts.encode()).hexdigest()[:20]}.json"


def load(backend: str = "jax", devices: int | None = None) -> HardwareProfile | None:
    """Return the profile that was measured under the same conditions; None if no valid profile is cached."""
    try:
        profile = json.loads(cache_path(backend, devices).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(profile, dict) or profile.get("schema") != SCHEMA:
        return None
    with suppress(SchemaError):
        return validated(profile)
    return None


def save(profile: Mapping[str, object], backend: str = "jax", devices: int | None = None) -> Path | None:
    """Cache a profile. Returns None if the cache cannot be written; the next run then measures again."""
    path = cache_path(backend, devices)
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(dict(profile), indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return None
    return path


def measured_under_load(profile: Mapping[str, object]) -> bool:
    """Return whether the machine was much busier during the measurement than now, so that its rates are too low."""
    then, now = profile.get("load_average"), this_machine.load_average()
    if not isinstance(then, int | float) or now is None:
        return False
    return then > _BUSY * this_machine.cpu_count() and now < then / 2


def _facts(backend: str, devices: int | None) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "backend": backend,
        "devices": devices,
        "host": platform.node(),
        "processor": this_machine.processor_name(),
        "cpus": this_machine.cpu_count(),
        "memory_bytes": this_machine.memory_bytes(),
        "accelerators": this_machine.accelerators(),
        "settings": this_machine.settings(),
        "versions": {name: _version(name) for name in _VERSIONS},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
