"""`Comparison` and `HardwareRow`: the result types of `autoplan compare`, with their sort order and JSON form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autoplan.jobs.messages import Observation
from autoplan.plan.records import Evidence
from autoplan.sources.source import SourceSpec
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.pricing import Offer

SCHEMA = 1


class FitVerdict(StrEnum):
    """Whether the training fits: yes; uncertain (the memory interval contains the limit); no; not known."""

    TRAINS = "trains"
    UNCERTAIN = "uncertain"
    TOO_LARGE = "too_large"
    NOT_KNOWN = "not_known"


@dataclass(frozen=True)
class HardwareRow:
    """The result for one kind of hardware. None: not known.

    devices            number of devices of the hardware; the configuration's mesh may use fewer
    chips              number of chips as they are sold, the unit of prices
    config             the best configuration; if none fits, the smallest
    needed_bytes       need of one device: the upper end of the estimate, or the compiler's figure
    least_bytes        lower end of the estimate
    capacity_bytes     usable memory of a device
    samples_per_second throughput over all devices
    mfu                MFU of the devices in use
    looked_at          sizes that were tried, the smallest first
    would_help         the smallest hardware that would help where it does not fit
    compiler           the compiler, where the evidence is compiled
    """

    hardware: str
    chip: str
    devices: int
    chips: int | None
    verdict: FitVerdict = FitVerdict.NOT_KNOWN
    evidence: Evidence = Evidence.ANALYTIC
    config: TrainConfig | None = None
    needed_bytes: int | None = None
    least_bytes: int | None = None
    capacity_bytes: int | None = None
    samples_per_second: float | None = None
    mfu: float | None = None
    bound: str | None = None
    offers: tuple[Offer, ...] = ()
    looked_at: tuple[str, ...] = ()
    reason: str | None = None
    would_help: str | None = None
    compiler: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster, chips: int | None, offers: tuple[Offer, ...]) -> HardwareRow:
        """Return a row that has only its hardware."""
        capacity = cluster.chip.usable_memory_bytes
        return cls(cluster.name, cluster.chip.name, cluster.devices, chips, capacity_bytes=capacity, offers=offers)

    @property
    def margin(self) -> float | None:
        """Return the share of a device's usable memory that stays free; below zero where it is too small."""
        if self.needed_bytes is None or not self.capacity_bytes:
            return None
        return 1 - self.needed_bytes / self.capacity_bytes

    @property
    def usd_per_million_samples(self) -> float | None:
        """Return the cost by the catalogue's first price, for all chips, including idle ones."""
        if (
            not self.offers
            or self.chips is None
            or not self.samples_per_second
            or self.verdict is not FitVerdict.TRAINS
        ):
            return None
        return self.offers[0].usd_per_million_samples(self.chips, self.samples_per_second)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values. `trains` is null where it is not known."""
        trains = {FitVerdict.TRAINS: True, FitVerdict.TOO_LARGE: False}.get(self.verdict)
        return {
            "hardware": self.hardware,
            "chip": self.chip,
            "devices": self.devices,
            "chips": self.chips,
            "looked_at": list(self.looked_at),
            "verdict": self.verdict.value,
            "trains": trains,
            "evidence": self.evidence.value,
            "config": None if self.config is None else self.config.to_dict(),
            "memory": {
                "needed_bytes": self.needed_bytes,
                "least_bytes": self.least_bytes,
                "capacity_bytes": self.capacity_bytes,
                "margin": self.margin,
            },
            "samples_per_second": self.samples_per_second,
            "mfu": self.mfu,
            "bound": self.bound,
            "usd_per_million_samples": self.usd_per_million_samples,
            "prices": [offer.to_dict() for offer in self.offers],
            "reason": self.reason,
            "would_help": self.would_help,
            "compiler": self.compiler,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """The rows in order, the training they are for, and notes."""

    source: SourceSpec
    observation: Observation
    headroom: float
    rows: tuple[HardwareRow, ...]
    by_cost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def sorted_by(self) -> str:
        """Return the key by which the rows that fit are sorted."""
        return "usd_per_million_samples" if self.by_cost else "samples_per_second"

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `compare --format json` prints."""
        baseline = self.observation.config
        return {
            "schema": SCHEMA,
            "source": {"kind": self.source.kind, "path": self.source.path, "sha256": self.source.sha256},
            "parameters": self.observation.parameters,
            "baseline": baseline.to_dict(),
            "headroom": self.headroom,
            "sorted_by": self.sorted_by,
            "rows": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
            "versions": dict(self.observation.environment),
        }


_VERDICTS = list(FitVerdict)


def ordered(rows: Iterable[HardwareRow], *, by_cost: bool) -> list[HardwareRow]:
    """Sort rows: those that fit by throughput or by cost, without a price last; the rest by missing memory.

    Numbers that agree in six digits are equal; such rows are sorted by name.
    """

    def key(row: HardwareRow) -> tuple[int, float, float, str]:
        cost = row.usd_per_million_samples if by_cost else None
        rate, margin = row.samples_per_second or 0.0, row.margin or 0.0
        priced = float("inf") if cost is None else cost
        speed = -rate if row.verdict is FitVerdict.TRAINS else -margin
        return _VERDICTS.index(row.verdict), _six_digits(priced if by_cost else 0.0), _six_digits(speed), row.hardware

    return sorted(rows, key=key)


def _six_digits(value: float) -> float:
    """Return the value without the last digits, in which sums of the same terms in another order differ."""
    return float(f"{value:.6g}")
