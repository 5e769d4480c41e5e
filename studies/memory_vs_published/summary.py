"""Tables of ratios of estimated to published memory, and of what the estimates say of runs that ended."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from studies.memory_vs_published import cases
from studies.memory_vs_published.results import Result, read

_ANSWERS = ("fits", "may fit", "does not fit")
_LEAST_SHARE = 0.1
"""Share of the published bytes that must be beyond the state for a ratio without the state to be printed."""
_NAMES = {
    "as_run": "kernels of the row's software",
    "operations": "Keras on PyTorch, no compiler",
    "compiled": "Keras on JAX, XLA",
}


def show() -> None:
    """Print the tables of README.md, in Markdown."""
    rows = read()
    published = [row for row in rows if row.live_bytes is not None and not row.is_bound]
    print("\nEstimates as the rows ran\n")
    _print_ratios(published)
    print("\nThe same rows by three estimates: median ratio, in brackets beyond the state, and MAPE\n")
    _print_estimates(published)
    print("\nBytes that grow with the batch, and bytes that do not: lines through the rows of lambda (MiB)\n")
    _print_lines([row for row in published if row.source == "lambda"])
    print("\nAnswers by outcome, as the rows ran\n")
    _print_answers([row for row in rows if not row.is_bound])
    print("\nBounds: state split over devices, a selection of operations recomputed (GiB)\n")
    _print_bounds([row for row in rows if row.is_bound])


def _print_head(*names: str) -> None:
    print(f"| {' | '.join(names)} |\n| {' | '.join('---' for _ in names)} |")


def _groups(rows: Sequence[Result]) -> Mapping[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for row in rows:
        found.setdefault(_group(row), []).append(row)
    return dict(sorted(found.items()))


def _group(row: Result) -> str:
    return f"{row.source} | {row.family} | {row.precision.removeprefix('mixed_')}"


def _print_ratios(rows: Sequence[Result]) -> None:
    _print_head(
        "source",
        "family",
        "precision",
        "rows",
        "median ratio",
        "beyond state",
        "MAPE",
        "inside",
        "not above",
        "worst",
        "constant",
    )
    for name, chosen in _groups(rows).items():
        ratios = [row.ratio() for row in chosen]
        inside = statistics.mean(row.inside() for row in chosen)
        below = statistics.mean(ratio <= 1 for ratio in ratios)
        worst = max(chosen, key=lambda row: abs(row.ratio() - 1))
        figures = [
            f"{statistics.median(ratios):.2f}",
            _beyond_state(chosen, "as_run"),
            _mape(ratios),
            f"{inside:.0%}",
            f"{below:.0%}",
            f"{worst.ratio():.2f} ({worst.model}, {worst.hw}, {worst.batch})",
            _mape(_constant(chosen)),
        ]
        print(f"| {name} | {len(chosen)} | {' | '.join(figures)} |")


def _constant(rows: Sequence[Result]) -> list[float]:
    """Return the ratios of an estimate that is one share of the device's memory: the median of these very rows."""
    shares = [row.live_bytes / row.device_bytes for row in rows if row.live_bytes is not None]
    return [statistics.median(shares) / share for share in shares]


def _mape(ratios: Iterable[float]) -> str:
    return f"{100 * statistics.mean(abs(ratio - 1) for ratio in ratios):.1f}%"


def _print_estimates(rows: Sequence[Result]) -> None:
    _print_head("source", "family", "precision", *_NAMES.values())
    for name, chosen in _groups(rows).items():
        print(f"| {name} | {' | '.join(_described(chosen, estimate) for estimate in _NAMES)} |")


def _described(rows: Sequence[Result], estimate: str) -> str:
    ratios = [row.ratio(estimate) for row in rows]
    return f"{statistics.median(ratios):.2f} ({_beyond_state(rows, estimate)}), {_mape(ratios)}"


def _beyond_state(rows: Sequence[Result], estimate: str) -> str:
    """Return the median ratio without the state; "-" where a row is almost all state."""
    shares = [(row.live_bytes - row.state_bytes) / row.live_bytes for row in rows if row.live_bytes]
    if min(shares) < _LEAST_SHARE:
        return "-"
    return f"{statistics.median(row.ratio_beyond_state(estimate) for row in rows):.2f}"


def _print_lines(rows: Sequence[Result]) -> None:
    """Print slopes and intercepts over the batch, published (with the context) and estimated."""
    _print_head(
        "model", "precision", "rows", "a sample, published", "estimated", "ratio", "the rest, published", "estimated"
    )
    groups: dict[str, list[Result]] = {}
    for row in rows:
        groups.setdefault(f"{row.model} | {row.precision.removeprefix('mixed_')}", []).append(row)
    for name, chosen in sorted(groups.items()):
        batches = [row.batch for row in chosen]
        published = statistics.linear_regression(batches, [(row.published_bytes or 0.0) / 2**20 for row in chosen])
        estimated = statistics.linear_regression(batches, [row.estimates["as_run"][0] / 2**20 for row in chosen])
        slopes = f"{published.slope:.0f} | {estimated.slope:.0f} | {estimated.slope / published.slope:.2f}"
        rest = f"{published.intercept:.0f} | {estimated.intercept:.0f}"
        print(f"| {name} | {len(chosen)} | {slopes} | {rest} |")


def _print_answers(rows: Sequence[Result]) -> None:
    _print_head("source", "outcome", "rows", *_ANSWERS, "estimate above the device's memory")
    outcomes: dict[str, list[Result]] = {}
    for row in rows:
        outcomes.setdefault(f"{row.source} | {'ran' if row.outcome == 'ok' else 'out of memory'}", []).append(row)
    for name, chosen in sorted(outcomes.items()):
        counts = Counter(row.answer() for row in chosen)
        above = sum(row.estimates["as_run"][0] > row.device_bytes for row in chosen)
        print(f"| {name} | {len(chosen)} | {' | '.join(str(counts[answer]) for answer in _ANSWERS)} | {above} |")


def _print_bounds(rows: Sequence[Result]) -> None:
    """Print rows whose rematerialization lies between none and that of all blocks."""
    _print_head("row", "devices", "published", "all blocks recomputed", "nothing recomputed", "between")
    pairs: dict[str, dict[str, Result]] = {}
    for row in rows:
        pairs.setdefault(row.row, {})[row.remat] = row
    for name, pair in pairs.items():
        full, none = (pair[bound].estimates["as_run"][0] for bound in ("full", "none"))
        live = pair["full"].live_bytes or 0.0
        figures = " | ".join(f"{size / 2**30:.1f}" for size in (live, full, none))
        print(f"| {name} | {pair['full'].devices} | {figures} | {'yes' if full <= live <= none else 'no'} |")


def print_rows(source: str) -> None:
    """Print every row of a source, in GiB."""
    names = (
        "row",
        "model",
        "family",
        "precision",
        "chip",
        "batch",
        "published",
        "less context",
        "estimate",
        "interval",
    )
    _print_head(*names, "ratio")
    for row in read():
        if row.source != source:
            continue
        total, low, high = (f"{size / 2**30:.2f}" for size in row.estimates["as_run"])
        published, live, ratio = row.outcome, "", ""
        if row.live_bytes is not None and row.published_bytes is not None:
            published, live = f"{row.published_bytes / 2**30:.2f}", f"{row.live_bytes / 2**30:.2f}"
            ratio = f"{row.ratio():.2f}"
        named = f"{row.row} | {row.model} | {row.family} | {row.precision} | {row.hw} | {row.batch}"
        print(f"| {named} | {published} | {live} | {total} | {low} to {high} | {ratio} |")


def print_excluded() -> None:
    """Print how many rows are left out, by source and reason."""
    count = Counter((one.source, one.reason) for one in cases.read()[1])
    _print_head("source", "rows", "reason")
    for (source, reason), number in sorted(count.items()):
        print(f"| {source} | {number} | {reason} |")
