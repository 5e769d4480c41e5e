"""Formats the results of `autoplan hardware list`, `show` and `probe` as tables and as values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autoplan import formatting
from autoplan.errors import AutoplanError
from autoplan.machine import hardware_profile
from autoplan.machine.local_hardware import LOCAL
from autoplan.reports.plan_table import heading, open_table
from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import parse
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import Known, describe, known

_RATES = ("float32", "bfloat16")


def known_document() -> dict[str, Any]:
    """Return the catalogue as plain values, and this machine if it was measured."""
    here = _here()
    local = None if here is None else here.to_dict()
    return {"schema": 1, "hardware": [asdict(row) for row in known()], "local": local}


def known_table() -> RenderableType:
    """Return the catalogue as a table with one chip per row; figures are of one device."""
    table = open_table("name", "chip", "usable memory", "GB/s", "float32 TFLOP/s", "bfloat16 TFLOP/s", "other names")
    for row in known():
        name = f"{row.key}-N" if row.sizes else row.key
        table.add_row(
            name,
            row.title,
            formatting.size(row.usable_memory_bytes),
            f"{row.memory_bytes_per_second / 1e9:,.4g}",
            *(_rate(row, dtype) for dtype in _RATES),
            ", ".join(row.aliases),
        )
    table.add_row(*_local_row())
    return Group(
        table,
        "\nFigures are per device. They are published, except in the row local, which is measured here.\n"
        "GB/s is the bandwidth of main memory.\n"
        "float32: matrix products at JAX's default precision, which is TF32 on NVIDIA GPUs from Ampere on and "
        "bfloat16 on TPUs.\n"
        "none: the chip has no hardware for this dtype. not known: no rate is published.\n"
        "GPUs: append -x<GPUs per host> and -n<hosts>, such as gpu-h100-80gb-x8-n2.\n"
        "TPUs: N is the number in Google's name, such as tpu-v4-8; `autoplan hardware show tpu-v4-8` lists the sizes.",
    )


def _local_row() -> list[str]:
    """Return the row of this machine as it was measured last."""
    here = _here()
    if here is None:
        return [LOCAL, "this machine: not measured yet (autoplan hardware probe)", *["—"] * 4, ""]
    chip = here.chip
    title = f"this machine: {formatting.counted(here.devices, 'device')} of {chip.name}"
    rates = [_teraflops(chip.peak_flops_per_second.get(dtype)) for dtype in _RATES]
    return [
        LOCAL,
        title,
        formatting.size(chip.usable_memory_bytes),
        f"{chip.memory_bytes_per_second / 1e9:,.4g}",
        *rates,
        "",
    ]


def _here() -> Cluster | None:
    """Return this machine on the backend that Keras would run on; None where it was not measured."""
    from autoplan.machine import local_hardware
    from autoplan.sources import keras_backend

    try:
        profile = hardware_profile.load(keras_backend.choose().name)
        return None if profile is None else local_hardware.resolve(LOCAL, profile=profile)
    except AutoplanError:  # without a backend or with an unreadable profile the catalogue can still be listed
        return None


def described(name: str) -> dict[str, Any]:
    """Return all that is known of a catalogue name; for `local` and for a file, the devices that they describe."""
    try:
        parse(name)
    except HardwareError:
        cluster = _local_or_file(name)
        return {"schema": 1, "name": cluster.name, "cluster": cluster.to_dict()}
    return {"schema": 1, **describe(name)}


def _local_or_file(name: str) -> Cluster:
    """Return this machine, as it was measured last, or the hardware that a file describes."""
    from autoplan.machine import local_hardware
    from autoplan.sources import keras_backend

    if not local_hardware.is_local(name):
        return local_hardware.resolve(name)
    return local_hardware.resolve(name, profile=hardware_profile.load(keras_backend.choose().name))


def description(found: Mapping[str, Any]) -> RenderableType:
    """Return the result of `described` as text."""
    cluster = from_mapping(found["cluster"])
    parts: list[RenderableType] = [f"{found['name']}: {cluster.summary()}"]
    if found.get("aliases"):
        parts.append(f"Other names: {', '.join(found['aliases'])}")
    parts += [_figures(found["figures"])] if "figures" in found else [_plain_figures(found["cluster"])]
    if found.get("slices"):
        parts += [heading("Sizes"), Text(", ".join(found["slices"]))]
    for price in found.get("prices") or []:
        sources = "; ".join(price["sources"])
        parts.append(f"Price: {price['usd_per_chip_hour']} USD per chip-hour ({price['basis']}). Source: {sources}.")
    return Group(*parts)


def probed(profile: Mapping[str, Any], backend: str) -> RenderableType:
    """Return the result of the probe, which `local` uses from now on."""
    from autoplan.machine import local_hardware

    cluster = local_hardware.resolve(local_hardware.LOCAL, profile=profile)
    figures = description({"name": cluster.name, "cluster": cluster.to_dict()})
    stored = hardware_profile.cache_path(backend)
    where = f"Stored in {stored}." if stored.exists() else "It could not be stored, so it is measured again each time."
    return Group(figures, f"\n{where}")


def _rate(row: Known, dtype: str) -> str:
    if dtype in row.without_units:
        return "none"
    rate = _teraflops(row.peak_flops_per_second.get(dtype))
    return f"{rate} ({row.float32_as})" if dtype == "float32" and row.float32_as else rate


def _teraflops(peak: float | None) -> str:
    return formatting.NOT_KNOWN if peak is None else f"{peak / 1e12:,.4g}"


def _figures(rows: list[Mapping[str, Any]]) -> RenderableType:
    """Return the published figures of one chip, each with its sources and notes."""
    table = open_table("figure (one chip)", "value", "sources and notes")
    for row in rows:
        sources = f"{'; '.join(row['sources'])}."
        doubt = "The figure is not verified." if row["unverified"] else ""
        notes = " ".join(filter(None, (sources, row["choice"], doubt)))
        table.add_row(row["figure"], f"{row['value']:.6g}", notes)
    return Group("", table)


def _plain_figures(cluster: Mapping[str, Any]) -> RenderableType:
    """Return the figures of one device of hardware outside the catalogue, with the sources that it names."""
    chip = cluster["chip"]
    sources: Mapping[str, str] = chip["sources"]
    flat = {key: value for key, value in chip.items() if isinstance(value, int | float)}
    flat |= {f"peak_flops_per_second.{dtype}": peak for dtype, peak in chip["peak_flops_per_second"].items()}
    table = open_table("figure (one device)", "value", "source")
    for key, value in flat.items():
        source = sources.get(key) or sources.get(key.partition(".")[0]) or formatting.NOT_KNOWN
        table.add_row(key, f"{value:.6g}", source)
    return Group("", table)
