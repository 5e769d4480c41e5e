"""Lists the sizes in which the chips of a family are rented or sold (TPU slices, GPU hosts), the smallest first."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import ChipRow, Name, parse, rows
from cost_models.hardware.lookup import cluster

MOST_CHIPS = 64
"""Largest size that is suggested: larger ones are pods that one team seldom rents."""

GROUPS = {
    "tpu": ("tpu",),
    "gpu": ("nvidia", "amd"),
    "nvidia": ("nvidia",),
    "amd": ("amd",),
    "cpu": ("cpu",),
    "all": ("tpu", "nvidia", "amd", "cpu"),
}
"""Families of the catalogue, by the word that users type."""


def chips_of_group(group: str) -> list[ChipRow]:
    """Return the chips of a family. HardwareError for an unknown family."""
    word = group.strip().lower()
    if word not in GROUPS:
        raise HardwareError(f"unknown family '{group}'; expected {', '.join(list(GROUPS)[:-1])} or {list(GROUPS)[-1]}")
    return [row for row in rows().values() if row.family in GROUPS[word]]


def sizes(row: ChipRow, most_chips: int = MOST_CHIPS) -> tuple[str, ...]:
    """Return the names of a chip's sizes with at most `most_chips` chips, the smallest first.

    TPUs: the slices on sale. GPUs: 1, 2, 4 ... in a host, then 2, 4, 8 ... full hosts where their network is known.
    """
    if row.slices:
        return tuple(f"{row.key}-{size}" for size, part in row.slices.items() if prod(part.topology) <= most_chips)
    return tuple(Name(row, chips_per_host=each, hosts=hosts).canonical for each, hosts in _hosts(row, most_chips))


def canonical(name: str) -> str:
    """Return the canonical spelling of a catalogue name; any other name is returned as it is."""
    try:
        return parse(name).canonical
    except HardwareError:
        return name.strip()


def larger(name: str, most_chips: int = MOST_CHIPS) -> tuple[str, ...]:
    """Return the sizes of the same chip with more devices, the smallest first; () if not a catalogue name."""
    try:
        row, devices = parse(name).row, cluster(name).devices
    except HardwareError:
        return ()
    return tuple(one for one in sizes(row, most_chips) if cluster(one).devices > devices)


def chips(name: str) -> int | None:
    """Return the number of chips, as they are sold, of a catalogue name; None if not a catalogue name."""
    try:
        return cluster(name).devices // parse(name).row.devices_per_chip
    except HardwareError:
        return None


def _hosts(row: ChipRow, most_chips: int) -> Iterator[tuple[int, int]]:
    """Yield (GPUs per host, hosts), doubling within a host, then over full hosts."""
    full = row.max_chips_per_host
    each = 1
    while each < min(full, most_chips + 1):
        yield each, 1
        each *= 2
    hosts = 1
    while full * hosts <= most_chips and (hosts == 1 or row.network is not None):
        yield full, hosts
        hosts *= 2
