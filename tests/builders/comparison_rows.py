"""Rows of a comparison by hand, for what is made of them."""

from __future__ import annotations

from autoplan.comparison.result import Comparison, FitVerdict, HardwareRow, ordered
from autoplan.sources.source import SourceSpec
from cost_models.hardware.pricing import Offer
from tests.builders.observations import config, observation
from tests.builders.workloads import GIB

PRICE = Offer(3.6, "on demand, somewhere", ("a list (read 2026-11-29)",))


def row(name="gpu-made", **changes):
    """A row that trains on one device, 1,000 samples a second, 4 of 16 GiB."""
    fields = {
        "chip": name,
        "devices": 1,
        "chips": 1,
        "verdict": FitVerdict.TRAINS,
        "config": config(64),
        "needed_bytes": 4 * GIB,
        "least_bytes": 3 * GIB,
        "capacity_bytes": 16 * GIB,
        "samples_per_second": 1000.0,
        "mfu": 0.25,
        "bound": "compute",
        "offers": (PRICE,),
        "looked_at": (name,),
    }
    return HardwareRow(name, **fields | changes)


def comparison(*rows, by_cost=False, **changes):
    """A comparison of these rows, in order."""
    fields = {
        "source": SourceSpec(kind="script", path="train.py", sha256="0" * 64),
        "observation": observation(),
        "headroom": 0.08,
        "rows": tuple(ordered(rows, by_cost=by_cost)),
        "by_cost": by_cost,
    }
    return Comparison(**fields | changes)
