"""Converts a catalogue name to a `Cluster`, and lists what the catalogue publishes about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.hardware.catalogue import ChipRow, Figure, LinkRow, Name, devices_of, parse, rows
from cost_models.hardware.cluster import Chip, Cluster, Link

_AMPERE = 8.0
"""Compute capability from which NVIDIA's matrix units take TF32 and bfloat16."""
_FLOAT32_GEMMS = {"tpu": "bfloat16"}


def cluster(name: str) -> Cluster:
    """Return the cluster of a catalogue name.

    `tpu-<generation>-<N>` with N as Google counts, `gpu-<chip>[-x<GPUs per host>][-n<hosts>]`, or `cpu`. HardwareError
    as for `catalogue.parse`. `outer_link` is None where no figures of the network were published.
    """
    found = parse(name)
    chip = _chip(found.row)
    if found.slice is None:
        return _machines(found, chip)
    part = found.slice
    return Cluster(
        name=found.canonical,
        chip=chip,
        devices=devices_of(found.row, part),
        hosts=part.hosts,
        inner_link=_link(found.row.link, kind="torus" if any(part.wraparound) else "mesh"),
        topology=part.topology,
        wraparound=part.wraparound,
    )


@dataclass(frozen=True)
class Known:
    """A row of `hardware list`. Figures are per JAX device; `sizes` are the numbers in the names of TPU slices.

    float32_as     dtype in which float32 GEMMs run by JAX's default precision, where it is not float32
    without_units  dtypes without matrix units on this chip, as opposed to dtypes whose rate was not published
    """

    key: str
    kind: str
    title: str
    aliases: tuple[str, ...]
    devices_per_chip: int
    sizes: tuple[int, ...]
    memory_bytes: int
    usable_memory_bytes: int
    peak_flops_per_second: Mapping[str, float]
    memory_bytes_per_second: float
    source: str
    unverified: tuple[str, ...]
    float32_as: str | None = None
    without_units: tuple[str, ...] = ()


def known() -> list[Known]:
    """Return every chip of the catalogue."""
    return [_known(row) for row in rows().values()]


def describe(name: str) -> dict[str, Any]:
    """Return everything that the catalogue has about a name, as plain values for `hardware show`.

    `cluster` has the keys of `Cluster.to_dict`. `figures` lists value, sources, choice and doubt of every figure as
    published (per chip, not per device). `slices` are the sizes on sale, `prices` the dollars an hour with their basis.
    """
    found = parse(name)
    row = found.row
    return {
        "name": found.canonical,
        "title": row.title,
        "aliases": list(row.aliases),
        "devices_per_chip": row.devices_per_chip,
        "cluster": cluster(name).to_dict(),
        "figures": [{"figure": key, **_plain(figure)} for key, figure in row.all_figures().items()],
        "slices": [f"{row.key}-{size}" for size in row.slices],
        "slices_source": row.slices_source.describe() if row.slices_source else None,
        "prices": [
            {"basis": price.basis, "usd_per_chip_hour": price.figure.value, **_plain(price.figure)}
            for price in row.prices
        ],
    }


def _chip(row: ChipRow) -> Chip:
    memory = int(row.figures["memory_bytes"].value) // row.devices_per_chip
    if "usable_memory_bytes_per_device" in row.figures:
        usable_figure = row.figures["usable_memory_bytes_per_device"]
        usable = int(usable_figure.value)
    else:
        usable_figure = row.figures["usable_memory_fraction"]
        usable = int(memory * usable_figure.value)
    capability = row.figures.get("compute_capability")
    sources = {f"peak_flops_per_second.{dtype}": figure.describe() for dtype, figure in row.peaks.items()}
    sources |= {key: figure.describe() for key, figure in row.figures.items()}
    return Chip(
        name=row.key,
        kind=row.kind,
        peak_flops_per_second={dtype: figure.value / row.devices_per_chip for dtype, figure in row.peaks.items()},
        memory_bytes=memory,
        usable_memory_bytes=usable,
        memory_bytes_per_second=row.figures["memory_bytes_per_second"].value / row.devices_per_chip,
        kernel_launch_seconds=row.figures["kernel_launch_seconds"].value,
        dispatch_seconds=row.figures["dispatch_seconds"].value,
        sources={**sources, "usable_memory_bytes": usable_figure.describe()},
        compute_capability=None if capability is None else capability.value,
    )


def _machines(found: Name, chip: Chip) -> Cluster:
    return Cluster(
        name=found.canonical,
        chip=chip,
        devices=found.chips_per_host * found.hosts * found.row.devices_per_chip,
        hosts=found.hosts,
        inner_link=_link(found.row.link),
        outer_link=_link(found.row.network),
    )


def _link(row: LinkRow | None, kind: str | None = None) -> Link | None:
    if row is None:
        return None
    values = {key: figure.value for key, figure in row.figures.items()}
    return Link(kind=kind or row.kind, source=row.figures["bytes_per_second"].describe(), **values)


def _known(row: ChipRow) -> Known:
    chip = _chip(row)
    doubtful = tuple(key for key, figure in row.all_figures().items() if figure.unverified)
    return Known(
        key=row.key,
        kind=row.kind,
        title=row.title,
        aliases=row.aliases,
        devices_per_chip=row.devices_per_chip,
        sizes=tuple(row.slices),
        memory_bytes=chip.memory_bytes,
        usable_memory_bytes=chip.usable_memory_bytes,
        peak_flops_per_second=chip.peak_flops_per_second,
        memory_bytes_per_second=chip.memory_bytes_per_second,
        source=row.figures["memory_bytes"].describe(),
        unverified=doubtful,
        float32_as=_float32_as(chip),
        without_units=("bfloat16",) if chip.compute_capability and chip.compute_capability < _AMPERE else (),
    )


def _float32_as(chip: Chip) -> str | None:
    """Return the dtype of float32 GEMMs: TF32 on NVIDIA's matrix units from Ampere on, bfloat16 on TPUs."""
    if chip.compute_capability and chip.compute_capability >= _AMPERE:
        return "TF32"
    return _FLOAT32_GEMMS.get(chip.kind)


def _plain(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "sources": list(figure.sources),
        "choice": figure.choice,
        "unverified": figure.unverified,
    }
