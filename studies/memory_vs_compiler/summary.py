"""Tables of the errors of estimates and corrected estimates, for models developed on and held-out models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from studies.memory_vs_compiler.estimates import read
from studies.memory_vs_compiler.models import MODELS
from studies.memory_vs_compiler.points import COMPILED_AT, TARGETS, Point, held_out
from studies.memory_vs_compiler.truths import compiled

CAPACITIES = (0.8, 0.9, 1.0, 1.1, 1.25)
"""Capacities of imagined devices, as shares of the memory that a step needs."""
_OPEN_FROM = 0.9
"""The least capacity whose open answers the README counts."""


@dataclass(frozen=True)
class Row:
    """A point with its compiled and its estimated memory, in bytes per device."""

    point: Point
    truth: int
    total: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return the signed error as a share of the compiled memory."""
        return self.total / self.truth - 1

    @property
    def half_width(self) -> float:
        """Return half the width of the interval as a share of the estimate."""
        return (self.high - self.low) / 2 / self.total


def show() -> None:
    """Print every table, in Markdown."""
    truths = {one.point: one.must_fit_bytes for one in compiled()}
    costs = {point: cost for point, cost in read().items() if point in truths}
    raw = [Row(p, truths[p], c["total"], c["total_low"], c["total_high"]) for p, c in costs.items()]
    corrected = _corrected(costs, truths)
    _tables("Estimates", raw)
    _tables(f"Corrected by one compilation at b = {COMPILED_AT} x the smallest batch", corrected)
    _print_answers({"": raw, "corrected, ": corrected})
    _print_models(raw)
    missing = len(truths) - len(costs)
    if missing:
        print(f"\n{missing} compiled points have no estimate yet; run --again.")


def _tables(title: str, rows: Sequence[Row]) -> None:
    for name, part in (("developed on", False), ("held out", True)):
        chosen = [row for row in rows if held_out(row.point.model) is part]
        print(f"\n{title}, {name} ({len({row.point.model for row in chosen})} models)\n")
        _print_errors(chosen)
        print()
        _print_fits(chosen)


def _print_errors(rows: Sequence[Row]) -> None:
    print("| target | rows | MAPE | median | worst underestimate | worst overestimate | inside | ± |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for target, chosen in _by_target(rows):
        errors = [100 * row.error for row in chosen]
        inside = 100 * statistics.mean(row.low <= row.truth <= row.high for row in chosen)
        width = 100 * statistics.median(row.half_width for row in chosen)
        under, over = _named(min(chosen, key=_error)), _named(max(chosen, key=_error))
        mape, median = statistics.mean(map(abs, errors)), statistics.median(errors)
        columns = f"{mape:.1f}% | {median:+.1f}% | {under} | {over} | {inside:.0f}% | {width:.0f}%"
        print(f"| {target} | {len(chosen)} | {columns} |")


def _named(row: Row) -> str:
    point = row.point
    return f"{100 * row.error:+.0f}% ({point.model}, {point.precision.removeprefix('mixed_')}, {point.batch})"


def _print_fits(rows: Sequence[Row]) -> None:
    """Print how often the answer is wrong or open.

    A step `fits` if the upper end of its interval is at most the capacity, and `does not fit` if the lower end is above
    it. Otherwise the answer is open.
    """
    small, large = [share for share in CAPACITIES if share < 1], [share for share in CAPACITIES if share >= 1]
    asked = [f'false "fits" at {share:g}' for share in small]
    asked += [f'false "does not fit" at {share:g}' for share in large]
    asked += [f"open at {share:g}" for share in CAPACITIES]
    print(f"| target | {' | '.join(asked)} |")
    print(f"| {' | '.join(['---'] * (len(asked) + 1))} |")
    for target, chosen in _by_target(rows):
        counts = [sum(row.high <= share * row.truth for row in chosen) for share in small]
        counts += [sum(row.low > share * row.truth for row in chosen) for share in large]
        counts += [sum(row.low <= share * row.truth < row.high for row in chosen) for share in CAPACITIES]
        print(f"| {target} | {' | '.join(f'{count} of {len(chosen)}' for count in counts)} |")


def _print_answers(groups: Mapping[str, Sequence[Row]]) -> None:
    """Print wrong and open answers of all targets: the last table of the README."""
    opened = [share for share in CAPACITIES if share >= _OPEN_FROM]
    print(
        '\n| estimate | rows | MAPE | inside | wrong "fits" | wrong "does not fit" | open at 0.9 | 1.0 | 1.1 | 1.25 |'
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for group, rows in groups.items():
        for name, part in (("held out", True), ("development", False)):
            chosen = [row for row in rows if held_out(row.point.model) is part]
            mape = 100 * statistics.mean(abs(row.error) for row in chosen)
            inside = 100 * statistics.mean(row.low <= row.truth <= row.high for row in chosen)
            fits = sum(row.high <= share * row.truth for row in chosen for share in CAPACITIES if share < 1)
            not_fits = sum(row.low > share * row.truth for row in chosen for share in CAPACITIES if share >= 1)
            counts = [sum(row.low <= share * row.truth < row.high for row in chosen) for share in opened]
            figures = " | ".join(map(str, (fits, not_fits, *counts)))
            print(f"| {group}{name} | {len(chosen)} | {mape:.1f}% | {inside:.0f}% | {figures} |")


def _print_models(rows: Sequence[Row]) -> None:
    """Print errors by model, only of models developed on: rules are made with these and without the held-out models."""
    print("\nMean signed error of each model developed on\n")
    print(f"| model | {' | '.join(TARGETS)} |")
    print(f"| {' | '.join(['---'] * (len(TARGETS) + 1))} |")
    for name in (one for one in MODELS if not held_out(one)):
        errors = (_mean_error(rows, name, target) for target in TARGETS)
        print(f"| {name} | {' | '.join(errors)} |")


def _mean_error(rows: Iterable[Row], model: str, target: str) -> str:
    errors = [row.error for row in rows if (row.point.model, row.point.target) == (model, target)]
    return f"{100 * statistics.mean(errors):+.1f}%" if errors else ""


def _by_target(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    groups = [(target, [row for row in rows if row.point.target == target]) for target in TARGETS]
    return [(target, chosen) for target, chosen in [*groups, ("all", list(rows))] if chosen]


def _error(row: Row) -> float:
    return row.error


def _corrected(costs: dict[Point, dict[str, int]], truths: dict[Point, int]) -> list[Row]:
    """Return the estimates of the other batches, corrected by the compilation of one batch, as `tune` does."""
    from autoplan.tuning.compiler_check import CARRIED, carried
    from cost_models.memory import MemoryCost

    found = []
    for point, cost in costs.items():
        at = COMPILED_AT * MODELS[point.model].batch
        like = point.at(at)
        if point.batch != at and like in costs:
            total = carried(MemoryCost.from_dict(cost), MemoryCost.from_dict(costs[like]), truths[like])
            found.append(Row(point, truths[point], total, total * (1 - CARRIED), total * (1 + CARRIED)))
    return found
