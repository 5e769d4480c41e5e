"""What can be had of a chip: the sizes it comes in, from the smallest up, and what renting them costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import Name, Row, parse, rows
from cost_models.hardware.cluster import cluster

MOST_CHIPS = 64
"""The largest size that is offered unasked: what one team rents, rather than a pod."""

GROUPS = {
    "tpu": ("tpu",),
    "gpu": ("nvidia", "amd"),
    "nvidia": ("nvidia",),
    "amd": ("amd",),
    "cpu": ("cpu",),
    "all": ("tpu", "nvidia", "amd", "cpu"),
}
"""What people call a family -> families of the catalogue."""


@dataclass(frozen=True)
class Offer:
    """A listed price. `usd_per_chip_hour` is of one chip as it is sold; sources say when they were read."""

    usd_per_chip_hour: float
    basis: str
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"usd_per_chip_hour": self.usd_per_chip_hour, "basis": self.basis, "sources": list(self.sources)}

    def usd_per_million_samples(self, chips: int, samples_per_second: float) -> float:
        """What training on a million samples costs on `chips` chips that together take so many a second."""
        return self.usd_per_chip_hour * chips / 3600 * 1e6 / samples_per_second


def chips_of_group(group: str) -> list[Row]:
    """The chips of a family. HardwareError, with the known families, for another word."""
    word = group.strip().lower()
    if word not in GROUPS:
        raise HardwareError(f"unknown family '{group}'; expected {', '.join(list(GROUPS)[:-1])} or {list(GROUPS)[-1]}")
    return [row for row in rows().values() if row.family in GROUPS[word]]


def sizes(row: Row, most_chips: int = MOST_CHIPS) -> tuple[str, ...]:
    """Names of a chip's sizes with at most so many chips, the smallest first.

    TPUs: the slices on sale. GPUs: 1, 2, 4 ... in a host, then 2, 4, 8 ... full hosts where their network is known.
    """
    if row.slices:
        return tuple(f"{row.key}-{size}" for size, part in row.slices.items() if prod(part.topology) <= most_chips)
    return tuple(Name(row, chips_per_host=each, hosts=hosts).canonical for each, hosts in _hosts(row, most_chips))


def canonical(name: str) -> str:
    """The one spelling of a catalogue name; what is none stays as it is."""
    try:
        return parse(name).canonical
    except HardwareError:
        return name.strip()


def larger(name: str, most_chips: int = MOST_CHIPS) -> tuple[str, ...]:
    """Sizes of the same chip with more devices, the smallest first; none for what is no catalogue name."""
    try:
        row, devices = parse(name).row, cluster(name).devices
    except HardwareError:
        return ()
    return tuple(one for one in sizes(row, most_chips) if cluster(one).devices > devices)


def chips(name: str) -> int | None:
    """How many chips, as they are sold, a catalogue name means; None for what is no catalogue name."""
    try:
        return cluster(name).devices // parse(name).row.devices_per_chip
    except HardwareError:
        return None


def offers(name: str) -> Sequence[Offer]:
    """Prices of a size, the one that fits it best first; none where none is listed, or for no catalogue name."""
    try:
        found = parse(name)
    except HardwareError:
        return ()
    size = found.slice.size if found.slice else 0
    fitting = [price for price in found.row.prices if price.from_size <= size]
    ordered = sorted(fitting, key=lambda price: -price.from_size)
    return tuple(Offer(price.figure.value, price.basis, price.figure.sources) for price in ordered)


def _hosts(row: Row, most_chips: int) -> Iterator[tuple[int, int]]:
    """(GPUs a host, hosts), doubling: within a host, then over full hosts."""
    full = row.max_chips_per_host
    each = 1
    while each < min(full, most_chips + 1):
        yield each, 1
        each *= 2
    hosts = 1
    while full * hosts <= most_chips and (hosts == 1 or row.network is not None):
        yield full, hosts
        hosts *= 2
