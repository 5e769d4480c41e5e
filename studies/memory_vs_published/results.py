"""The rows of `results.csv`: published bytes and the estimates of each row."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.memory import Capacity

if TYPE_CHECKING:
    from studies.memory_vs_published.cases import Case
    from studies.memory_vs_published.estimates import Estimates

RESULTS = Path(__file__).resolve().parent / "results.csv"
ESTIMATES = ("as_run", "operations", "compiled")


@dataclass(frozen=True)
class Result:
    """A row with its estimates.

    published_bytes  the published figure; None: only the outcome is known
    live_bytes       the same less the context that the source states
    device_bytes     the memory of the device
    remat            the rematerialization of the estimate
    is_bound         whether the row's own rematerialization lies between "none" and "full"
    state_bytes      parameters, the optimizer's slots, and gradients where they stay allocated
    estimates        (total, low, high) in bytes by the name of the estimate
    """

    row: str
    source: str
    family: str
    model: str
    precision: str
    hw: str
    devices: int
    batch: int
    outcome: str
    published_bytes: float | None
    live_bytes: float | None
    device_bytes: int
    remat: str
    is_bound: bool
    state_bytes: int
    estimates: dict[str, tuple[int, int, int]]

    def ratio(self, estimate: str = "as_run") -> float:
        """Return the estimate over the published bytes less the context."""
        if self.live_bytes is None:
            raise ValueError(f"{self.row} has no published memory")
        return self.estimates[estimate][0] / self.live_bytes

    def ratio_beyond_state(self, estimate: str = "as_run") -> float:
        """Return the same ratio without the bytes of the state, which are known."""
        if self.live_bytes is None:
            raise ValueError(f"{self.row} has no published memory")
        return (self.estimates[estimate][0] - self.state_bytes) / (self.live_bytes - self.state_bytes)

    def inside(self, estimate: str = "as_run") -> bool:
        """Return whether the interval has the published bytes less the context."""
        _, low, high = self.estimates[estimate]
        return self.live_bytes is not None and low <= self.live_bytes <= high

    def answer(self, estimate: str = "as_run") -> str:
        """Return what `autoplan estimate` would say of this device, with its default headroom."""
        _, low, high = self.estimates[estimate]
        capacity = Capacity(self.device_bytes)
        if capacity.fits(high):
            return "fits"
        return "may fit" if capacity.may_fit(low) else "does not fit"


def write(folder: Path, sources: set[str]) -> None:
    """Estimate every row that is not left out. Rows of other sources stay as they are."""
    from studies.memory_vs_published import cases
    from studies.memory_vs_published.estimates import estimate

    chosen = [case for case in cases.read()[0] if not sources or case.source in sources]
    lines = [line for line in _lines() if sources and line["source"] not in sources]
    known: dict[Any, Any] = {}
    for case in sorted(chosen, key=lambda one: (one.source, one.traced.name, one.hw)):
        profile = case.place.chip.compute_capability, case.place.chip.kind
        same = case.traced, case.config, case.stack, case.keeps_gradients, case.fused_attention, profile
        if same not in known:
            known[same] = estimate(case, folder)
            print(f"{case.row} {case.model} {case.hw}", flush=True)
        lines.append(_line(case, known[same]))
        _save(sorted(lines, key=lambda line: (line["row"], line["remat"])))


def _line(case: Case, found: Estimates) -> dict[str, Any]:
    line = {
        "row": case.row,
        "source": case.source,
        "family": case.family,
        "model": case.model,
        "precision": case.traced.precision,
        "hw": case.hw,
        "devices": case.devices,
        "batch": case.batch,
        "outcome": case.outcome,
        "published_bytes": "" if case.peak_bytes is None else round(case.peak_bytes),
        "live_bytes": "" if case.live_bytes is None else round(case.live_bytes),
        "device_bytes": case.place.chip.memory_bytes,
        "remat": case.remat,
        "is_bound": case.is_bound,
        "state_bytes": found.state_bytes,
    }
    for name in ESTIMATES:
        cost = getattr(found, name)
        ends = {"": cost.total, "_low": cost.total_low, "_high": cost.total_high}
        line |= {f"{name}{end}_bytes": size for end, size in ends.items()}
    return line


def _save(lines: list[dict[str, Any]]) -> None:
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _lines() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read() -> list[Result]:
    """Return the rows of `results.csv`."""
    return list(_read(_lines()))


def _read(lines: Iterable[dict[str, str]]) -> Iterable[Result]:
    plain = ("row", "source", "family", "model", "precision", "hw", "outcome", "remat")
    for line in lines:
        figures = {
            name: (int(line[f"{name}_bytes"]), int(line[f"{name}_low_bytes"]), int(line[f"{name}_high_bytes"]))
            for name in ESTIMATES
        }
        yield Result(
            **{name: line[name] for name in plain},
            devices=int(line["devices"]),
            batch=int(line["batch"]),
            published_bytes=float(line["published_bytes"]) if line["published_bytes"] else None,
            live_bytes=float(line["live_bytes"]) if line["live_bytes"] else None,
            device_bytes=int(line["device_bytes"]),
            is_bound=line["is_bound"] == "True",
            state_bytes=int(line["state_bytes"]),
            estimates=figures,
        )
