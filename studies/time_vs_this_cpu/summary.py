"""Tables of the rows: error and order of the estimates, from the probe alone and after three trials."""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from cost_models.calibration import TimePair, calibrate
from cost_models.time.cost import TimeCost
from studies.time_vs_this_cpu import cases

TRIALS = 3
DRAWS = 300
KEPT = ", freed memory kept"
"""End of the name of a configuration with keep_freed_memory, in the rows of the table."""
PARTS = ("compute", "memory", "communication", "overhead")

Row = dict[str, Any]
Seconds = Callable[[Row], float]


def read(table: Path) -> list[Row]:
    with table.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def whole(table: Path) -> list[Row]:
    """Return one row per measured configuration, as numbers: the median over its rounds, with their range.

    `first` is its first round and `second` the median of the others.
    """
    rounds: dict[tuple[str, str], list[Row]] = {}
    for row in read(table):
        if not row["error"] and row.get("predicted_micro_step_seconds"):
            texts = ("key", "model", "config", "date", "machine", "versions", "error")
            numbers = {name: value if name in texts else float(value) for name, value in row.items()}
            rounds.setdefault((row["model"], row["config"]), []).append(numbers)
    return [_over_rounds(sorted(own, key=lambda row: row["round"])) for own in rounds.values()]


def _over_rounds(rows: Sequence[Row]) -> Row:
    """Return the row of a configuration. Its interval is from the fastest to the slowest process."""
    times = [row["measured"] for row in rows]
    return {
        **rows[0],
        "measured": median(times),
        "low": min(times) if len(times) > 1 else rows[0]["low"],
        "high": max(times) if len(times) > 1 else rows[0]["high"],
        "first": times[0],
        "second": median(times[1:] or times),
        "rounds": len(times),
    }


def cost(row: Row) -> TimeCost:
    """Return the estimate of a row as a value of the cost models."""
    parts = {f"{name}_seconds": row[f"predicted_{name}_seconds"] for name in PARTS}
    seconds = row["predicted_micro_step_seconds"]
    bound = max(PARTS, key=lambda name: parts[f"{name}_seconds"])
    samples_per_second = row["samples"] / seconds
    return TimeCost(seconds, seconds, **parts, samples_per_second=samples_per_second, mfu=None, bound=bound)


def _of(name: str) -> Seconds:
    return lambda row: float(row[name])


def raw(row: Row) -> float:
    return float(row["predicted_micro_step_seconds"])


def measured(row: Row) -> float:
    return float(row["measured"])


def after(trials: Sequence[Row]) -> Seconds:
    """Return a function that estimates a row, corrected by these trials."""
    found = calibrate((TimePair(cost(row), row["measured"]) for row in trials), probed=True)
    return lambda row: found.time(cost(row)).micro_step_seconds


def miss(row: Row, seconds: float) -> float:
    return abs(seconds / measured(row) - 1)


def separated_pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the pairs of one model's rows whose intervals, in seconds per sample, do not overlap."""
    pairs = []
    for one, other in itertools.combinations(rows, 2):
        apart = one["low"] / one["samples"] > other["high"] / other["samples"]
        behind = other["low"] / other["samples"] > one["high"] / one["samples"]
        if one["model"] == other["model"] and (apart or behind):
            pairs.append((one, other))
    return pairs


def tau(pairs: Iterable[tuple[Row, Row]], one: Seconds, other: Seconds) -> float:
    """Return Kendall's tau by seconds per sample: (concordant - discordant pairs) / all pairs."""

    def faster(seconds: Seconds, a: Row, b: Row) -> bool:
        return bool(seconds(a) / a["samples"] < seconds(b) / b["samples"])

    signs = [1 if faster(one, a, b) == faster(other, a, b) else -1 for a, b in pairs]
    return fmean(signs) if signs else float("nan")


def of_same_model(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return (errors, tau) of the other configurations of a model, after trials of any three."""
    misses, orders = [], []
    for trials in itertools.combinations(rows, TRIALS):
        corrected, rest = after(trials), [row for row in rows if row not in trials]
        misses += [miss(row, corrected(row)) for row in rest]
        if pairs := separated_pairs(rest):
            orders.append(tau(pairs, corrected, measured))
    return misses, orders


def of_other_models(rows: Sequence[Row]) -> list[float]:
    """Return the errors after three trials of other models, drawn at random."""
    misses, draw = [], random.Random(0)
    for _ in range(DRAWS):
        row = draw.choice(rows)
        corrected = after(draw.sample([one for one in rows if one["model"] != row["model"]], TRIALS))
        misses.append(miss(row, corrected(row)))
    return misses


def show_pages(rows: Sequence[Row]) -> None:
    """Print micro-steps with and without `keep_freed_memory`."""
    by = {(row["model"], row["config"]): row for row in rows}
    print("\n| model | batch | freed memory returned, ms | keep_freed_memory, ms | ratio | predicted ratio |")
    print("|" + " --- |" * 6)
    for (model, config), kept in by.items():
        paged = by.get((model, config.removesuffix(KEPT)))
        if config.endswith(KEPT) and paged is not None:
            figures = (f"{1e3 * measured(row):.4g}" for row in (paged, kept))
            ratios = (f"{seconds(paged) / seconds(kept):.2f}" for seconds in (measured, raw))
            print(f"| {' | '.join([model, str(round(kept['samples'])), *figures, *ratios])} |")


def show(table: Path) -> None:
    rows = whole(table)
    print("| model | trials | predicted / measured | error | after 3 trials | separated pairs | tau | after 3 trials |")
    print("|" + " --- |" * 8)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        found[model] = of_same_model(own)
        kind = cases.group(model)
        print(_line(model if kind == "developed on" else f"{model} ({kind})", own, *found[model]))
    groups = [(kind, [model for model in found if cases.group(model) == kind]) for kind in cases.GROUPS]
    for name, chosen in [*groups, ("all", list(found))]:
        if not chosen:
            continue
        misses, orders = ([one for model in chosen for one in found[model][at]] for at in (0, 1))
        print(_line(name, [row for row in rows if row["model"] in chosen], misses, orders))
    repeated = [row for row in rows if row["rounds"] > 1]
    pairs = [pair for pair in itertools.combinations(repeated, 2) if pair[0]["model"] == pair[1]["model"]]
    both = [tau(of, *(_of(name) for name in ("first", "second"))) for of in (separated_pairs(repeated), pairs)]
    apart = fmean(abs(row["first"] / row["second"] - 1) for row in repeated)
    print(f"\ntau of the first round against the others: {both[0]:.2f} over separated pairs, {both[1]:.2f} over all")
    print(f"the first round is {apart:.1%} from the others on average")
    if len({row["model"] for row in rows}) > 1:
        others = of_other_models(rows)
        print(f"after {TRIALS} trials of other models, drawn {DRAWS} times: mean error {fmean(others):.1%}")
    show_pages(rows)


def _line(name: str, rows: Sequence[Row], later: Sequence[float], ordered: Sequence[float]) -> str:
    pairs = separated_pairs(rows)
    cells = [
        name,
        str(len(rows)),
        f"{median(raw(row) / measured(row) for row in rows):.2f}",
        f"{fmean(miss(row, raw(row)) for row in rows):.1%}",
        f"{fmean(later):.1%}" if later else "",
        str(len(pairs)),
        f"{tau(pairs, raw, measured):.2f}" if pairs else "",
        f"{fmean(ordered):.2f}" if ordered else "",
    ]
    return f"| {' | '.join(cells)} |"
