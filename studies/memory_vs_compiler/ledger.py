"""The ledger of rules: what each rule of `cost_models.xla` is worth on models that it was not made from.

A rule is switched off in every profile that lists it, and the held-out points are estimated again. `ledger.csv` has a
row for each rule and group of targets. Rows of rules that were deleted stay as a record.
"""

from __future__ import annotations

import ast
import csv
import inspect
import statistics
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from cost_models import Batch, MemoryCost, TrainConfig
from cost_models.execution import profile_for
from cost_models.hardware.lookup import cluster
from cost_models.memory import memory_on
from cost_models.xla.profile import Profile
from cost_models.xla.rules import READ_FROM, registered
from studies.memory_vs_compiler.estimates import workload_of
from studies.memory_vs_compiler.points import TARGETS, Point, held_out
from studies.memory_vs_compiler.truths import Truth, compiled

LEDGER = Path(__file__).resolve().parent / "ledger.csv"
GROUPS = {"A100": ("A100",), "H100": ("H100",), "TPU": ("TPU v4", "TPU v5e", "TPU v6e"), "CPU": ("CPU",)}
LEAST_MAPE_POINTS, LEAST_ROWS = 0.2, 2
"""A rule pays if without it the held-out MAPE of a group is higher by so many percentage points, or so many rows fewer
are inside their intervals. A rule that pays in no group is deleted, unless a note in its row says why it stays."""
UNMEASURED = {
    "priority-fusion": "every profile needs a fusion policy",
    "list-scheduler": "every profile needs a scheduler",
    "dot-workspace": "nothing was compiled for a GPU before Ampere",
}
"""Rules that cannot be switched off or apply to no compiled point, with the reason."""
NO_GROUP = "none"


@dataclass(frozen=True)
class Accuracy:
    """Errors of held-out estimates in per cent, and intervals that contain the compiler's figure."""

    mape: float
    worst_under: float
    worst_over: float
    inside: int
    half_width: float


@dataclass(frozen=True)
class Entry:
    """A row of the ledger: one rule and one group of targets, with the rule and without it."""

    rule: str
    group: str
    state: str
    rows: int
    mape: float
    mape_without: float
    worst_under: float
    worst_under_without: float
    worst_over: float
    worst_over_without: float
    inside: int
    inside_without: int
    half_width: float
    half_width_without: float
    lines: int
    module: str
    source: str
    read_from: str
    date: str
    note: str = ""

    @property
    def pays(self) -> bool:
        """True if estimates of this group are worse without the rule by what the criterion asks for."""
        worse = self.mape_without - self.mape >= LEAST_MAPE_POINTS
        return worse or self.inside - self.inside_without >= LEAST_ROWS


def measure(rules: Iterable[str], traces: Path | None, targets: Collection[str] = ()) -> None:
    """Measure rules, print their rows and write them to the ledger; rows of rules that were deleted stay.

    targets  of which to measure the groups; nothing: all groups
    """
    truths = [one for one in compiled() if held_out(one.point.model)]
    known = {(entry.rule, entry.group): entry for entry in read()}
    start: dict[str, Accuracy] = {}
    for name in rules:
        for group in _groups_of(name):
            if targets and not set(targets) & set(GROUPS[group]):
                continue
            chosen = [one for one in truths if one.point.target in GROUPS[group]]
            if group not in start:
                start[group] = _accuracy(chosen, None, traces)
            note = known[name, group].note if (name, group) in known else ""
            entry = _entry(name, group, len(chosen), start[group], _accuracy(chosen, name, traces), note)
            known[name, group] = entry
            print(_line(entry), flush=True)
        write(known.values())


def note_unmeasured() -> None:
    """Write a row without figures for each rule that cannot be measured."""
    known = {(entry.rule, entry.group): entry for entry in read()}
    nothing = Accuracy(0.0, 0.0, 0.0, 0, 0.0)
    for name, reason in UNMEASURED.items():
        known[name, NO_GROUP] = _entry(name, NO_GROUP, 0, nothing, nothing, reason)
    write(known.values())


def read() -> list[Entry]:
    """Return the rows of the ledger."""
    if not LEDGER.exists():
        return []
    kinds = {item.name: {"int": int, "float": float}.get(str(item.type), str) for item in fields(Entry)}
    with LEDGER.open(newline="") as file:
        return [Entry(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def write(entries: Iterable[Entry]) -> None:
    """Write the ledger: registered rules first, then those that were deleted, by name and group."""
    order = [*GROUPS, NO_GROUP]
    rows = sorted(entries, key=lambda one: (one.state == "deleted", one.rule, order.index(one.group)))
    with LEDGER.open("w", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Entry)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def measurable() -> list[str]:
    """Return the rules that can be switched off."""
    listed = {name for target in TARGETS.values() for name in _profile(target).rules}
    return sorted(listed - UNMEASURED.keys())


def _profile(target: str) -> Profile:
    return profile_for(TrainConfig(Batch(1)), cluster(target))


def _groups_of(name: str) -> list[str]:
    if name not in registered():
        raise SystemExit(f"no rule is named {name}; known rules are {', '.join(measurable())}")
    return [group for group, targets in GROUPS.items() if any(name in _profile(TARGETS[one]) for one in targets)]


def _accuracy(truths: Sequence[Truth], without: str | None, traces: Path | None) -> Accuracy:
    rows = [(one.must_fit_bytes, _estimate(one.point, without, traces)) for one in truths]
    errors = [100 * (cost.total / truth - 1) for truth, cost in rows]
    return Accuracy(
        mape=round(statistics.mean(map(abs, errors)), 2),
        worst_under=round(min(errors), 1),
        worst_over=round(max(errors), 1),
        inside=sum(cost.total_low <= truth <= cost.total_high for truth, cost in rows),
        half_width=round(
            100 * statistics.median((cost.total_high - cost.total_low) / 2 / cost.total for _, cost in rows), 1
        ),
    )


def _estimate(point: Point, without: str | None, traces: Path | None) -> MemoryCost:
    profile = profile_for(point.config, point.cluster)
    workload = workload_of(point, traces)
    return memory_on(workload, point.config, profile if without is None else profile.without(without))


def _entry(name: str, group: str, rows: int, with_it: Accuracy, without: Accuracy, note: str) -> Entry:
    function = registered()[name].function
    pairs = {}
    for item in fields(Accuracy):
        pairs[item.name] = getattr(with_it, item.name)
        pairs[f"{item.name}_without"] = getattr(without, item.name)
    return Entry(
        rule=name,
        group=group,
        state="kept",
        rows=rows,
        **pairs,
        lines=lines_of(name),
        module=function.__module__.removeprefix("cost_models.xla."),
        source=registered()[name].source,
        read_from=READ_FROM,
        date=datetime.now(UTC).date().isoformat(),
        note=note,
    )


def lines_of(name: str) -> int:
    """Return the lines of a rule: its function and the functions, classes and constants of its module that it uses."""
    function = registered()[name].function
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    defined = {bound: node for node in tree.body for bound in _bound(node)}
    pending, used = [function.__name__], set[str]()
    while pending:
        if (one := pending.pop()) in defined and one not in used:
            used.add(one)
            pending += _names(defined[one])
    nodes = {id(defined[one]): defined[one] for one in used}
    return sum((node.end_lineno or 0) - _first_line(node) + 1 for node in nodes.values())


def _names(node: ast.AST) -> list[str]:
    """Return the names that a node uses, annotations aside."""
    if isinstance(node, ast.Name):
        return [node.id]
    parts = (
        part
        for name, value in ast.iter_fields(node)
        if name not in ("annotation", "returns")
        for part in (value if isinstance(value, list) else [value])
    )
    return [name for part in parts if isinstance(part, ast.AST) for name in _names(part)]


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def _line(entry: Entry) -> str:
    change = entry.mape_without - entry.mape
    return (
        f"{entry.rule:28} {entry.group:5} MAPE {entry.mape:.2f}% -> {entry.mape_without:.2f}% ({change:+.2f}), "
        f"worst {entry.worst_under:+.0f}%..{entry.worst_over:+.0f}% -> "
        f"{entry.worst_under_without:+.0f}%..{entry.worst_over_without:+.0f}%, "
        f"inside {entry.inside} -> {entry.inside_without} of {entry.rows}, {entry.lines} lines"
        f"{', pays' if entry.pays else ''}"
    )
