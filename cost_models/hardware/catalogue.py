"""Reads the catalogue of published chips from `devices/*.yaml`, where a new chip is a row; parses hardware names.

A row describes what the vendor sells (a chip, a package); a JAX device may be half of it. `lookup.py` turns rows into
the values that cost models compute with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import yaml

from cost_models.errors import HardwareError

FAMILIES = ("tpu", "nvidia", "amd", "cpu")
_AXES = "xyz"
_MOST_NEAR = 4
_SHORTEST_PART = 2
"""Shorter parts are not searched for: a single letter occurs in too many names."""


@dataclass(frozen=True)
class Figure:
    """A published number with its sources.

    choice      reason for this number where sources differ
    unverified  whether no primary source was read
    """

    value: float
    sources: tuple[str, ...]
    choice: str = ""
    unverified: bool = False

    def describe(self) -> str:
        """Return sources, choice and doubt as text."""
        text = "; ".join(self.sources)
        if self.choice:
            text += f". {self.choice}"
        return f"{text.removesuffix('.')}. Not verified" if self.unverified else text


@dataclass(frozen=True)
class LinkRow:
    """Figures of a link between devices; `cluster.Link` explains the kinds."""

    kind: str
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Slice:
    """A TPU slice on sale. `size` is the number in its name; `topology` counts chips along each axis."""

    size: int
    topology: tuple[int, ...]
    wraparound: tuple[bool, ...]
    hosts: int


@dataclass(frozen=True)
class Price:
    """Rental price of a chip in USD an hour, its basis (the offer), and the smallest slice size with this price."""

    basis: str
    figure: Figure
    from_size: int = 0


@dataclass(frozen=True)
class ChipRow:
    """One chip of the catalogue. Figures are per chip; figures whose key ends in `_per_device` are per JAX device.

    family   name of its file: one of `FAMILIES`
    prices   in the order of the file, the list price first
    """

    key: str
    family: str
    kind: str
    title: str
    aliases: tuple[str, ...]
    device_kinds: tuple[str, ...]
    devices_per_chip: int
    max_chips_per_host: int
    peaks: Mapping[str, Figure]
    figures: Mapping[str, Figure]
    link: LinkRow | None
    network: LinkRow | None
    slices: Mapping[int, Slice]
    slices_source: Figure | None
    prices: tuple[Price, ...]

    def all_figures(self) -> dict[str, Figure]:
        """Return every figure under one flat key, for tables and tests."""
        flat = {f"peak_flops_per_second.{dtype}": figure for dtype, figure in self.peaks.items()}
        flat |= self.figures
        for name, link in (("link", self.link), ("network", self.network)):
            if link is not None:
                flat |= {f"{name}.{key}": figure for key, figure in link.figures.items()}
        return flat


@dataclass(frozen=True)
class Name:
    """A parsed hardware name: the row, and either a slice or GPUs per host and hosts."""

    row: ChipRow
    slice: Slice | None = None
    chips_per_host: int = 1
    hosts: int = 1

    @property
    def canonical(self) -> str:
        """The canonical spelling of this name."""
        if self.slice is not None:
            return f"{self.row.key}-{self.slice.size}"
        text = self.row.key
        if self.chips_per_host > 1 or self.hosts > 1:
            text += f"-x{self.chips_per_host}"
        return text + (f"-n{self.hosts}" if self.hosts > 1 else "")


def devices_of(row: ChipRow, part: Slice) -> int:
    """Return the number of JAX devices of a slice."""
    return prod(part.topology) * row.devices_per_chip


@cache
def rows() -> Mapping[str, ChipRow]:
    """Return every row under its canonical key (`tpu-v4`, `gpu-a100-80gb`, `cpu`), in the order of the files."""
    found: dict[str, ChipRow] = {}
    taken: set[str] = set()
    for family in FAMILIES:
        text = files("cost_models.hardware").joinpath("devices", f"{family}.yaml").read_text(encoding="utf-8")
        for row in _family_rows(yaml.safe_load(text)):
            names = {row.key, *row.aliases}
            if names & taken:
                raise HardwareError(f"the catalogue names {', '.join(sorted(names & taken))} twice")
            taken |= names
            found[row.key] = row
    return found


def parse(name: str) -> Name:
    """Parse a hardware name: `tpu-<generation>-<N>`, `gpu-<chip>[-x<GPUs per host>][-n<hosts>]` or `cpu`.

    Upper case and underscores are accepted. HardwareError for a chip that the catalogue does not know (with similar and
    known names), for a slice that does not exist (with the valid sizes) and for a name that several chips share (with
    their names).
    """
    text = name.strip().lower().replace("_", "-")
    if match := re.fullmatch(r"tpu-?([a-z0-9]+)(?:-(\d+))?", text):
        return _tpu(name, match[1], match[2])
    if match := re.fullmatch(r"(gpu-.+?)(?:-x(\d+))?(?:-n(\d+))?", text):
        return _gpu(name, match[1], int(match[2] or 1), int(match[3] or 1))
    row = _find(text)
    if row is None or row.kind != "cpu":
        raise unknown(name)
    return Name(row)


def unknown(name: str) -> HardwareError:
    """Return the error for an unknown name: similar names, known names, and other ways to describe hardware."""
    asked = _bare(name.strip().lower().replace("_", "-"))
    spellings = {_bare(alias): row for row in rows().values() for alias in (row.key, *row.aliases)}
    near = list(dict.fromkeys(_form(spellings[hit]) for hit in _near(asked, spellings)))[:_MOST_NEAR]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return HardwareError(
        f"unknown hardware '{name}'.{hint} Known: {', '.join(map(_form, rows().values()))}. "
        "Or give `local` for this machine, or a YAML file that describes yours."
    )


def _near(asked: str, spellings: Iterable[str]) -> list[str]:
    """Return the spellings that begin with `asked`, contain it or resemble it, in this order."""
    known = list(spellings)
    stem = re.sub(r"(-x\d+)?(-n\d+)?(-\d+)?$", "", asked)
    resembling = get_close_matches(stem, known, 3, 0.7)
    for word in (asked, stem):
        if len(word) < _SHORTEST_PART:
            continue
        containing = sorted((one for one in known if word in one), key=lambda one: not one.startswith(word))
        if containing:
            return [*containing, *resembling]
    return resembling


def row_of_device_kind(device_kind: str) -> ChipRow | None:
    """Return the row whose devices JAX reports as `device_kind`, or None."""
    return next((row for row in rows().values() if device_kind in row.device_kinds), None)


def _form(row: ChipRow) -> str:
    return f"{row.key}-N" if row.kind == "tpu" else row.key


def _bare(text: str) -> str:
    return text.removeprefix("tpu-").removeprefix("gpu-")


def _find(text: str) -> ChipRow | None:
    return next((row for row in rows().values() if text == row.key or text in row.aliases), None)


def _tpu(name: str, generation: str, size: str | None) -> Name:
    row = _find(f"tpu-{generation}")
    if row is None:
        raise unknown(name)
    found = row.slices.get(int(size)) if size else None
    if found is None:
        asked = f"{row.title} has no slice of {size}" if size else f"'{name}' does not say how large the slice is"
        sizes = ", ".join(str(size) for size in row.slices)
        raise HardwareError(f"{asked}; give {row.key}-N with N one of {sizes}")
    return Name(row, slice=found)


def _gpu(name: str, chip: str, chips_per_host: int, hosts: int) -> Name:
    row = _find(chip)
    if row is None:
        several = [key for key in rows() if key.startswith(chip + "-")]
        if several:
            raise HardwareError(f"'{name}' is ambiguous; give one of {', '.join(several)}")
        raise unknown(name)
    if chips_per_host < 1 or hosts < 1:
        raise HardwareError(f"'{name}' has no device; -x and -n take whole numbers of at least 1")
    if chips_per_host > row.max_chips_per_host:
        raise HardwareError(
            f"'{name}' puts {chips_per_host} GPUs in one host, and {row.title} comes with up to "
            f"{row.max_chips_per_host}; spread them over hosts with -n, as in {row.key}-x{row.max_chips_per_host}-n2, "
            "or describe the machine in a YAML file"
        )
    return Name(row, chips_per_host=chips_per_host, hosts=hosts)


def _family_rows(data: Mapping[str, Any]) -> Iterable[ChipRow]:
    titles = {key: f"{source['title']} (read {source['read']})" for key, source in data["sources"].items()}
    links = {
        key: LinkRow(entry["kind"], {k: _figure(v, titles) for k, v in entry.items() if k != "kind"})
        for key, entry in data.get("links", {}).items()
    }
    defaults = {key: _figure(entry, titles) for key, entry in data["defaults"].items()}
    for key, entry in data["chips"].items():
        yield _row(key, data, entry, titles=titles, links=links, defaults=defaults)


def _row(
    key: str,
    file: Mapping[str, Any],
    entry: Mapping[str, Any],
    *,
    titles: Mapping[str, str],
    links: Mapping[str, LinkRow],
    defaults: Mapping[str, Figure],
) -> ChipRow:
    kind = file["kind"]
    prefix = "" if kind == "cpu" else f"{kind}-"
    own = {k: _figure(v, titles) for k, v in entry.items() if isinstance(v, Mapping) and "value" in v}
    link = links.get(entry.get("link") or "")
    if kind == "tpu":
        link = _torus_link(own.pop("link_bytes_per_second"), defaults)
    slices_source = _figure({"value": 0, **entry["slices_source"]}, titles) if "slices" in entry else None
    return ChipRow(
        key=prefix + key,
        family=file["family"],
        kind=kind,
        title=entry["title"],
        aliases=tuple(prefix + alias for alias in entry["aliases"]),
        device_kinds=tuple(entry.get("device_kinds", ())),
        devices_per_chip=entry["devices_per_chip"],
        max_chips_per_host=entry.get("max_chips_per_host", 1),
        peaks={dtype: _figure(v, titles) for dtype, v in entry["peak_flops_per_second"].items()},
        figures={k: v for k, v in defaults.items() if not k.startswith("link_")} | own,
        link=link,
        network=links.get(entry.get("network") or ""),
        slices={size: _slice(size, given) for size, given in entry.get("slices", {}).items()},
        slices_source=slices_source,
        prices=tuple(
            Price(price["basis"], _figure(price, titles), price.get("from_size", 0))
            for price in entry["price_usd_per_chip_hour"]
        ),
    )


def _torus_link(bandwidth: Figure, defaults: Mapping[str, Figure]) -> LinkRow:
    shared = {k.removeprefix("link_"): v for k, v in defaults.items() if k.startswith("link_")}
    return LinkRow("torus", {"bytes_per_second": bandwidth, **shared})


def _slice(size: int, given: Mapping[str, Any]) -> Slice:
    topology = tuple(int(length) for length in given["topology"].split("x"))
    closed = "" if given["wraparound"] == "none" else given["wraparound"]
    return Slice(size, topology, tuple(axis in closed for axis in _AXES[: len(topology)]), given["hosts"])


def _figure(entry: Mapping[str, Any], titles: Mapping[str, str]) -> Figure:
    source = entry["source"]
    keys = [source] if isinstance(source, str) else source
    return Figure(
        value=entry["value"],
        sources=tuple(titles[key] for key in keys),
        choice=entry.get("choice", ""),
        unverified=entry.get("unverified", False),
    )
