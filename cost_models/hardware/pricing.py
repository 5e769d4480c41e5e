"""Returns the listed rental prices of catalogue hardware, and converts them to cost per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import parse


@dataclass(frozen=True)
class Offer:
    """A listed rental price of one chip as it is sold. Each source says when it was read."""

    usd_per_chip_hour: float
    basis: str
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"usd_per_chip_hour": self.usd_per_chip_hour, "basis": self.basis, "sources": list(self.sources)}

    def usd_per_million_samples(self, chips: int, samples_per_second: float) -> float:
        """Return the cost of training on a million samples with `chips` chips at their joint rate."""
        return self.usd_per_chip_hour * chips / 3600 * 1e6 / samples_per_second


def offers(name: str) -> Sequence[Offer]:
    """Return the listed prices of a catalogue name, the best match of its size first; () for any other name."""
    try:
        found = parse(name)
    except HardwareError:
        return ()
    size = found.slice.size if found.slice else 0
    fitting = [price for price in found.row.prices if price.from_size <= size]
    ordered = sorted(fitting, key=lambda price: -price.from_size)
    return tuple(Offer(price.figure.value, price.basis, price.figure.sources) for price in ordered)
