"""Resolves a hardware name to a `Cluster`: a name of the catalogue, a YAML file, or `local` for this machine.

The rates of this machine come from a hardware profile that a worker process has measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from autoplan.errors import HardwareError
from autoplan.machine import hardware_profile, this_machine
from autoplan.machine.hardware_profile import HardwareProfile
from cost_models.errors import SchemaError
from cost_models.hardware.catalogue import row_of_device_kind
from cost_models.hardware.cluster import Chip, Cluster, Link, share
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster

LOCAL = "local"
_LARGEST_BYTES = 2**20
"""Largest size of a hardware file."""


def is_local(name: str) -> bool:
    """Return whether a hardware name means this machine, so that trials can run."""
    return name.strip().lower() == LOCAL


def resolve(name: str, *, devices: int | None = None, profile: Mapping[str, object] | None = None) -> Cluster:
    """Return the cluster of `--hardware NAME` with `--devices N`.

    name      `local`, `cpu`, a name of the catalogue, or the path of a YAML file with the keys of `Cluster.to_dict`
    devices   number of simulated devices on `cpu` and on `local` without accelerators; number of used accelerators on
              `local` with accelerators; for other hardware it must be the number that the name implies
    profile   the hardware profile of this machine; required for `local`

    HardwareError if the name, the file or the number is invalid.
    """
    if devices is not None and devices < 1:
        raise HardwareError(f"--devices {devices}: expected a whole number of at least 1")
    if is_local(name):
        return _local(profile, devices)
    found = _from_file(Path(name)) if _is_path(name) else cluster(name)
    if devices is None or devices == found.devices:
        return found
    if found.chip.kind == "cpu" and found.devices == 1:
        return share(found, devices)
    raise HardwareError(
        f"{found.name} has {found.devices} devices, but --devices is {devices}; leave --devices out, or name hardware "
        "of the right size"
    )


def identity(cluster: Cluster) -> dict[str, str | int]:
    """Return the values that identify hardware in a study; `local` differs between machines."""
    named: dict[str, str | int] = {"name": cluster.name, "chip": cluster.chip.name}
    return named | {"processors": this_machine.cpu_count()} if cluster.local else named


def _local(profile: Mapping[str, object] | None, devices: int | None) -> Cluster:
    if profile is None:
        raise HardwareError(
            "`local` needs a profile of this machine, but none was measured; run `autoplan hardware probe`"
        )
    try:
        checked = hardware_profile.validated(profile)
    except SchemaError as error:
        raise HardwareError(
            f"the profile of this machine is invalid ({error}); run `autoplan hardware probe`"
        ) from None
    is_cpu = checked["platform"] == "cpu"
    return _local_processor(checked, devices) if is_cpu else _local_accelerators(checked, devices)


def _local_processor(profile: HardwareProfile, devices: int | None) -> Cluster:
    here = this_machine.memory_bytes()
    chip = _measured_chip(profile, this_machine.processor_name(), memory=here, usable=here)
    alone = Cluster(name=LOCAL, chip=chip, devices=1, local=True)
    count = devices or profile["devices"]
    return alone if count == 1 else share(alone, count, _measured_link(profile, count))


def _local_accelerators(profile: HardwareProfile, devices: int | None) -> Cluster:
    there = profile["devices"]
    count = devices or there
    if count > there:
        raise HardwareError(f"--devices is {count}, but this machine has {there} of {profile['device_kind']}")
    row = row_of_device_kind(profile["device_kind"])
    published = cluster(row.key if row.kind == "gpu" else f"{row.key}-{min(row.slices)}") if row else None
    usable = profile["usable_memory_bytes"] or (published.chip.usable_memory_bytes if published else None)
    if usable is None:
        raise HardwareError(
            f"{profile['device_kind']} does not report its memory, and the catalogue does not contain it"
        )
    memory = max(usable, published.chip.memory_bytes if published else 0)
    chip = _measured_chip(profile, profile["device_kind"], memory=memory, usable=usable)
    if published:
        chip = replace(chip, compute_capability=published.chip.compute_capability)
    link = _measured_link(profile, count)
    if link is None and published and published.inner_link and not published.topology:
        link = published.inner_link
    return Cluster(name=LOCAL, chip=chip, devices=count, inner_link=link, local=True)


def _measured_chip(profile: HardwareProfile, name: str, *, memory: int, usable: int) -> Chip:
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
            "peak_flops_per_second": f"best of square products, {how}; not a peak of a data sheet",
            "memory_bytes_per_second": f"reading and writing a large array, {how}",
            "kernel_launch_seconds": f"chain of tiny products, {how}",
            "dispatch_seconds": f"burst of tiny programs, {how}",
            "fresh_page_bytes_per_second": f"first touch of mapped memory, {how}",
            "host_micro_step_seconds": f"fits of tiny models, {how}",
            "host_variable_seconds": f"fits of tiny models, {how}",
            "processors": "number that this process may use",
            "cache_bytes": "last level, as reported by the kernel",
            "usable_memory_bytes": "the runtime's limit"
            if usable != memory
            else "physical memory or control group limit",
        },
    )


def _measured_link(profile: HardwareProfile, devices: int) -> Link | None:
    """Return the link that two all-reduces imply: a fixed time and a rate. None without all-reduces over `devices`."""
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
                f"{path} is larger than {_LARGEST_BYTES // 2**20} MiB; expected a hardware file in YAML"
            )
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HardwareError(f"there is no hardware file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(f"the hardware file {path} cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # too large numbers and dates, recursive lists
        raise HardwareError(f"the hardware file {path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return from_mapping(data)
    except HardwareError as error:
        raise HardwareError(f"{path}: {error}") from None
