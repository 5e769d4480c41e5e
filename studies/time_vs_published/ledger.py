"""The ledger of time rules: what each rule of `cost_models.time` is worth on published rows.

A rule is switched off by name, and all rows are predicted again. `ledger.csv` has a row for each rule. Rows of rules
that were deleted stay as a record. `studies/time_vs_this_cpu` has the same for rules of CPUs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cost_models.xla.rules import registered
from studies.memory_vs_compiler.ledger import lines_of
from studies.time_vs_published import cases, report
from studies.time_vs_published.predict import predict

LEDGER = Path(__file__).resolve().parent / "ledger.csv"
GROUP = "published"
LEAST_POINTS, LEAST_TAU = 0.2, 0.01
"""A rule is kept if without it an error is worse by as many percentage points, or the rank correlation by as much."""
_FEWEST = 7  # rows of a source whose order and factor count


@dataclass(frozen=True)
class Quality:
    """How good predictions are.

    error       mean absolute error in per cent
    corrected   the same after one factor for each source, fitted to three rows that are left out; of CPUs None
    tau         Kendall's rank correlation of measured and predicted seconds a sample
    """

    error: float
    corrected: float | None
    tau: float


@dataclass(frozen=True)
class Entry:
    """A row of the ledger: one rule and one group of rows, with the rule and without it.

    changed  rows whose prediction the rule changes
    lines    of the rule's code
    """

    rule: str
    group: str
    state: str
    rows: int
    changed: int
    error: float
    error_without: float
    corrected: float | None
    corrected_without: float | None
    tau: float
    tau_without: float
    lines: int
    module: str
    source: str
    date: str
    note: str = ""

    @property
    def buys(self) -> bool:
        """Whether predictions are worse without the rule by what the criterion asks for."""
        points = [self.error_without - self.error]
        if self.corrected is not None and self.corrected_without is not None:
            points.append(self.corrected_without - self.corrected)
        return max(points) >= LEAST_POINTS or self.tau - self.tau_without >= LEAST_TAU

    def __str__(self) -> str:
        corrected = ""
        if self.corrected is not None:
            corrected = f"with one factor {self.corrected:.2f}% -> {self.corrected_without:.2f}%, "
        return (
            f"{self.rule:30} {self.group:12} error {self.error:.2f}% -> {self.error_without:.2f}%, {corrected}"
            f"tau {self.tau:.3f} -> {self.tau_without:.3f}, {self.changed} of {self.rows} rows, {self.lines} lines"
        )


def rules() -> list[str]:
    """Return the names of the rules of time."""
    return sorted(name for name, one in registered().items() if one.function.__module__.startswith("cost_models.time."))


def entry(name: str, group: str, rows: int, changed: int, with_it: Quality, without: Quality, note: str = "") -> Entry:
    """Return the ledger's row of a registered rule."""
    pairs: dict[str, Any] = {}
    for item in fields(Quality):
        pairs[item.name] = getattr(with_it, item.name)
        pairs[f"{item.name}_without"] = getattr(without, item.name)
    return Entry(
        rule=name,
        group=group,
        state="kept",
        rows=rows,
        changed=changed,
        **pairs,
        lines=lines_of(name),
        module=registered()[name].function.__module__.removeprefix("cost_models.time."),
        source=registered()[name].source,
        date=datetime.now(UTC).date().isoformat(),
        note=note,
    )


def read(ledger: Path = LEDGER) -> list[Entry]:
    """Return the rows of a ledger."""
    if not ledger.exists():
        return []
    kinds = {item.name: str(item.type) for item in fields(Entry)}

    def value(name: str, text: str) -> Any:
        if "None" in kinds[name] and not text:
            return None
        return {"int": int, "str": str}.get(kinds[name], float)(text)

    with ledger.open(newline="", encoding="utf-8") as file:
        return [Entry(**{name: value(name, text) for name, text in row.items()}) for row in csv.DictReader(file)]


def write(entries: Iterable[Entry], ledger: Path = LEDGER) -> None:
    """Write a ledger, sorted by state, rule and group."""
    with ledger.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Entry)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(entries, key=lambda one: (one.state, one.rule, one.group)))


def measure(names: Sequence[str], folder: Path) -> None:
    """Measure rules on the published rows, print their rows and write them to the ledger."""
    for name in names:
        if name not in rules():
            raise SystemExit(f"no rule of time is named {name}; known rules are {', '.join(rules())}")
    chosen = sorted(cases.read()[0], key=lambda case: (case.source, case.traced.name, case.chip))
    known = {(one.rule, one.group): one for one in read()}
    found = _predicted(chosen, folder, names)
    start = found.pop("")
    for name, rows in found.items():
        changed = sum(_seconds(one) != _seconds(other) for one, other in zip(start, rows, strict=True))
        note = known[name, GROUP].note if (name, GROUP) in known else ""
        own = entry(name, GROUP, len(rows), changed, _quality(start), _quality(rows), note)
        if changed:
            known[name, GROUP] = own
        print(own, flush=True)
    write(known.values())


def deleted(name: str, ledger: Path = LEDGER) -> None:
    """Mark the rows of a rule as those of a deleted one."""
    write((replace(one, state="deleted") if one.rule == name else one for one in read(ledger)), ledger)


def _predicted(chosen: Sequence[cases.Case], folder: Path, names: Sequence[str]) -> dict[str, list[report.Row]]:
    """Rows by the rule that is switched off; under an empty name with all rules."""
    found: dict[str, list[report.Row]] = {name: [] for name in ("", *names)}
    for case in chosen:
        row = {
            "row": case.row,
            "source": case.source,
            "family": case.family,
            "batch": case.batch,
            "stack": case.stack + " channels first" * case.nchw,
            "measured_seconds": case.measured_seconds,
        }
        for name, rows in found.items():
            without = frozenset({name} if name else ())
            rows.append({**row, "predicted_seconds": predict(case, folder, without).seconds})
    return found


def _seconds(row: report.Row) -> float:
    return float(row["predicted_seconds"])


def _quality(rows: Sequence[report.Row]) -> Quality:
    parts = [part for part in report.groups_of(rows).values() if len(part) >= _FEWEST]
    return Quality(
        error=round(report.error([report.ratio(row) for row in rows]), 2),
        corrected=round(report.error([one for part in parts for one in report.scaled(part)]), 2),
        tau=round(sum(len(part) * report.tau(part) for part in parts) / sum(map(len, parts)), 4),
    )
