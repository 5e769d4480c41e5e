"""Formats plans and shortlists as text (`tune`, `explain`, dry runs); has the tables that other reports share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan import formatting
from autoplan.machine.local_hardware import LOCAL
from autoplan.plan import file, next_commands
from autoplan.plan.records import (
    FAILURES,
    CompilerEvidence,
    Evidence,
    Measurement,
    Plan,
    Rejection,
    Rescue,
    TrialRecord,
    to_plain,
)
from autoplan.reports import baseline_vs_plan
from autoplan.tuning.request import Candidate, TuneResult

_SHOWN_OF_A_GROUP = 8
_SHOWN_FIRST = 5
"""Number of candidates that a dry run shows, besides the script's own configuration."""
_CAPTION = (
    "Times come from the median of the paired runs; brackets show the range of 95% of separate runs. The speed-up is "
    "computed pair by pair, so it can differ from the ratio of these rows."
)
_UNVERIFIED_CAPTION = (
    "Each figure comes from one process; brackets show the spread of its micro-steps. Separate runs vary more."
)
_WHOLE_FIT = "The time of the whole fit uses the median compile time of the trials and excludes validation."
OUTCOME_COLUMNS = ("update", "samples/s", "compile time", "whole fit", "peak memory")
"""Columns of a table of trials, while tuning and afterwards."""
_NARROW_COLUMNS = ("samples/s", "whole fit", "peak memory")
"""Columns of the same table in a narrow terminal."""
_WIDE = 100
"""Width of a terminal, in characters, from which on all columns are shown."""
_STAGES = {
    "infeasible": "not enough memory",
    "known_issue": "ruled out",
    "held": "setting cannot be changed here",
    "slower": "expected to be slower",
}


def tuned(result: TuneResult, path: Path | None = None, *, everything: bool = False) -> RenderableType:
    """Return the report of `tune`: baseline against plan, the reasons and the next command; or the dry run."""
    if result.plan is None:
        return shortlist(result, everything=everything)
    plan = result.plan
    where = result.written_to or path
    parts: list[RenderableType] = [
        baseline_vs_plan.headline(plan),
        _compared(plan),
        *_why(plan),
        *notes_section(plan.notes),
    ]
    if result.interrupted:
        parts.insert(0, "Interrupted: this is the best plan so far.")
    if where is not None:
        parts.append(_next(plan, where, f"The plan is in {where}. "))
    return Group(*parts)


def explained(plan: Plan, path: Path) -> RenderableType:
    """Return the report of `explain`: the plan's changes, its trials, its verification and its notes."""
    return Group(
        file.first_line(plan),
        _origin(plan),
        heading("Changes"),
        _differences(plan),
        heading("Result"),
        baseline_vs_plan.headline(plan),
        _compared(plan),
        *_why(plan),
        *_rescued(plan.rescue),
        *_verified(plan),
        *_tried(plan),
        *_rejections(plan.rejected),
        *notes_section(plan.notes),
        _next(plan, path),
    )


def shortlist(result: TuneResult, *, everything: bool = False) -> RenderableType:
    """Return the report of a dry run: the first candidates, or all with `everything`, and the time of tuning."""
    shown, left = (list(enumerate(result.shortlist)), 0) if everything else _first(result.shortlist)
    table = open_table("rank", "configuration", "samples/s", "memory per device", "reason")
    for number, candidate in shown:
        table.add_row(str(number), candidate.config.describe(), *_estimate(candidate), candidate.reason)
    parts: list[RenderableType] = [
        "Nothing was measured: all figures are analytic. Tuning would run the baseline (your own configuration) first.",
        table,
        *([f"… and {left:,} more (--all)"] if left else []),
        *(_rejections(result.rejected) if everything else _rejections_in_short(result.rejected)),
    ]
    parts += notes_section(result.notes)
    if result.estimated_seconds is not None:
        parts.append(f"\nTuning would take about {formatting.duration(result.estimated_seconds)} (analytic).")
    return Group(*parts)


def _first(candidates: Sequence[Candidate]) -> tuple[list[tuple[int, Candidate]], int]:
    """Return the first candidates and the script's own, each with its number, and how many are left out."""
    numbered = list(enumerate(candidates))
    shown = [(number, one) for number, one in numbered if number < _SHOWN_FIRST or one.baseline]
    return shown, len(numbered) - len(shown)


def _rejections_in_short(rejected: Sequence[Rejection]) -> list[RenderableType]:
    """Count the rejections of each stage in one line."""
    counts = {stage: sum(_stands_for(one) for one in rejected if one.stage == stage) for stage in _STAGES}
    groups = [f"{count:,} ({_STAGES[stage]})" for stage, count in counts.items() if count]
    if not groups:
        return []
    return [f"Configurations that are not tried: {formatting.listed(groups)}. --all lists them with the reasons."]


def _stands_for(rejection: Rejection) -> int:
    """Return the number of configurations that this rejection covers."""
    return int(rejection.figures.get("configurations") or 1)


def shortlist_document(result: TuneResult) -> dict[str, Any]:
    """Return a dry run as plain values."""
    return {
        "schema": 1,
        "evidence": "analytic",
        "shortlist": [
            {
                "config": item.config.to_dict(),
                "estimate": item.estimate and item.estimate.to_dict(),
                "reason": item.reason,
            }
            for item in result.shortlist
        ],
        "rejected": [to_plain(item) for item in result.rejected],
        "forecast_seconds": result.estimated_seconds,
        "notes": list(result.notes),
    }


def print_to(console: Console, report: RenderableType) -> None:
    """Print a report without the trailing spaces of tables."""
    with console.capture() as captured:
        console.print(report, crop=False)  # a command to paste is longer than a narrow terminal is wide
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
    console.file.flush()


def open_console(stream: Any, width: int | None = None) -> Console:
    """Open a console on a stream. In a pipe, tables get the width that they need, up to 140 columns."""
    if width is None and not stream.isatty():
        width = 140
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def heading(text: str) -> RenderableType:
    """Return a title for a part of a report, with an empty line before it."""
    return Text(f"\n{text}", style="bold")


def open_table(*columns: str) -> Table:
    """Open a table without a frame; words that are too long are broken rather than cut off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _next(plan: Plan, path: Path, before: str = "") -> RenderableType:
    """Return the lines to run next, and where to run them."""
    here = plan.measured is not None or plan.hardware.name == LOCAL
    there = "" if here else f", on {plan.hardware.name}"
    how = ", in Python, where x and y are the arguments of fit" if next_commands.in_python(plan, path) else ""
    lines = (_Verbatim("  " + line) for line in next_commands.train_lines(plan, path))
    return Group(Text(f"\n{before}Next{there}{how}:"), *lines)


class _Verbatim:
    """A line that is never broken, because readers paste it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._text, no_wrap=True, overflow="ignore", style="bold")


def _compared(plan: Plan) -> RenderableType:
    table = open_table("", "baseline", "plan", "evidence")
    for row in baseline_vs_plan.rows(plan):
        table.add_row(row.name, _cell(row.baseline), _cell(row.plan), row.evidence)
    if plan.measured is None:
        return Padding(table, (1, 0))
    caption = _CAPTION if plan.verification is not None and plan.verification.pairs else _UNVERIFIED_CAPTION
    return Padding(Group(table, caption, *([_WHOLE_FIT] if plan.whole_fit is not None else [])), (1, 0))


def _cell(cell: baseline_vs_plan.Cell) -> str:
    return f"{cell.text} ({cell.interval})" if cell.interval else cell.text


def _why(plan: Plan) -> list[RenderableType]:
    lines = [*baseline_vs_plan.reasons(plan)]
    numerics = baseline_vs_plan.numerics(plan)
    return [*lines, *([numerics] if numerics else [])]


def _origin(plan: Plan) -> RenderableType:
    source, environment = plan.source, plan.environment
    fit = source.fit
    samples = "an unknown number of samples" if fit.samples is None else formatting.counted(fit.samples, "sample")
    epochs = formatting.counted(fit.epochs, "epoch")
    updates = "" if fit.updates is None else f", {formatting.counted(fit.updates, 'update')} of the weights"
    return (
        f"The plan is for call {fit.index} of fit() in {source.path}: {samples} per epoch, {epochs}{updates}.\n"
        f"Made with autoplan {environment.autoplan}, Keras {environment.keras}, "
        f"{environment.backend} {environment.backend_version}, Python {environment.python} on {environment.platform}."
    )


def _differences(plan: Plan) -> RenderableType:
    changed = baseline_vs_plan.differences(plan.baseline.config, plan.config)
    if not changed:
        return "Nothing: the plan is the baseline, which is your own configuration."
    table = open_table("setting", "baseline", "plan")
    for change in changed:
        table.add_row(change.key, change.baseline, change.plan)
    return Group("The plan changes these settings of the baseline, which is your own configuration:\n", table)


def _verified(plan: Plan) -> list[RenderableType]:
    checked = plan.verification
    if checked is None:
        return [heading("How it was verified"), "It was not verified."]
    if not checked.pairs:
        return [
            heading("How it was verified"),
            "No pair of runs in clean processes was completed, so the figures come from trials.",
        ]
    done = {
        "validation": checked.validation_ran,
        "a checkpoint": checked.checkpoint_saved,
        "a partial last batch": checked.remainder_ran,
    }
    included = formatting.listed(["training", *(name for name, ran in done.items() if ran)])
    missing = formatting.listed([name for name, ran in done.items() if not ran], "or")
    return [
        heading("How it was verified"),
        f"Baseline and plan ran alternately, in {formatting.counted(checked.pairs, 'pair')} of clean processes.\n"
        f"The plan's run included {included}" + (f", but not {missing}." if missing else "."),
    ]


def _rescued(rescue: Rescue | None) -> list[RenderableType]:
    """Return the changes that were considered for a baseline that runs out of memory, with the outcome of each."""
    if rescue is None:
        return []
    table = open_table("change", "outcome", "needs at least", "evidence", "reason")
    for rung in rescue.tried:
        outcome, changed = rung.outcome.replace("_", " "), ", ".join(rung.changed)
        table.add_row(changed, outcome, formatting.size(rung.needed_bytes), rung.evidence.value, rung.reason or "—")
    return [heading("How the smallest change was found"), table]


def _tried(plan: Plan) -> list[RenderableType]:
    if not plan.trials:
        return []
    title = f"Trials: {len(plan.trials)} (estimated update: analytic; other figures: {_tier(plan)})"
    whole = any(trial.whole_fit_seconds is not None for trial in plan.trials)
    rows = ByWidth(lambda columns: _trials_table(plan.trials, columns))
    return [heading(title), rows, *([_WHOLE_FIT] if whole else [])]


def _trials_table(trials: Sequence[TrialRecord], columns: Sequence[str]) -> Table:
    estimated = ["estimated update"] if "update" in columns else []
    table = open_table("trial", "configuration", *stacked(*estimated, *columns), "outcome")
    for trial in trials:
        shown = outcome_cells(trial.measurement or trial.compiled, trial.whole_fit_seconds)
        estimate = trial.predicted_update_seconds
        shown["estimated update"] = "—" if estimate is None else formatting.seconds(estimate)
        cells = [shown[name] for name in (*estimated, *columns)]
        table.add_row(str(trial.number), trial.config.describe(), *cells, _outcome(trial))
    return table


def stacked(*columns: str) -> list[str]:
    """Return names of columns with one word per line, because the figures below them are narrow."""
    return [name.replace(" ", "\n") for name in columns]


class ByWidth:
    """A table of trials with the `OUTCOME_COLUMNS` that fit the terminal's width; `draw` takes their names."""

    def __init__(self, draw: Callable[[Sequence[str]], RenderableType]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(OUTCOME_COLUMNS if options.max_width >= _WIDE else _NARROW_COLUMNS)


def outcome_cells(measured: Measurement | CompilerEvidence | None, whole_fit_seconds: float | None) -> dict[str, str]:
    """Return the figures of a trial by `OUTCOME_COLUMNS`; dashes where there is no figure."""
    return dict(zip(OUTCOME_COLUMNS, _outcome_figures(measured, whole_fit_seconds), strict=True))


def _outcome_figures(measured: Measurement | CompilerEvidence | None, whole_fit_seconds: float | None) -> list[str]:
    if isinstance(measured, CompilerEvidence):
        time = measured.time
        seconds = formatting.seconds(None if time is None else time.update_seconds)
        rate = formatting.rate(None if time is None else time.samples_per_second)
        compiling = formatting.span(measured.compile_seconds)
        return [seconds, rate, compiling, "—", formatting.size(measured.memory.program_bytes)]
    if measured is None:
        return ["—"] * len(OUTCOME_COLUMNS)
    compiling, whole = formatting.span(measured.compile_seconds), formatting.span(whole_fit_seconds)
    rate = formatting.rate(measured.samples_per_second)
    return [formatting.seconds(measured.update_seconds), rate, compiling, whole, formatting.size(measured.peak_bytes)]


def _outcome(trial: TrialRecord) -> str:
    if trial.failure is None:
        return trial.outcome
    failure = FAILURES[trial.failure.kind]
    first = formatting.first_line(trial.failure.message)
    log = f" (log: {trial.failure.log})" if trial.failure.log else ""
    return failure + (f": {first}" if first else "") + log


def _tier(plan: Plan) -> str:
    if plan.evidence is Evidence.COMPILED:
        return "compiled programs"
    return "measured on simulated devices" if plan.hardware.simulated else "measured"


def _rejections(rejected: Iterable[Rejection]) -> list[RenderableType]:
    """Return a table for each stage, in the order of `_STAGES`, with the first rejections of each."""
    groups: dict[str, list[Rejection]] = defaultdict(list)
    for rejection in rejected:
        groups[rejection.stage].append(rejection)
    parts: list[RenderableType] = []
    for stage, why in _STAGES.items():
        if groups[stage]:
            count = formatting.counted(sum(map(_stands_for, groups[stage])), "configuration")
            parts += [heading(f"Not tried, {why}{_tiers(groups[stage])}: {count}"), *_rejection_group(groups[stage])]
    return parts


def _tiers(group: Sequence[Rejection]) -> str:
    """Return the evidence tiers of a group's reasons, where these are figures."""
    if group[0].stage not in ("infeasible", "slower"):
        return ""
    tiers = {str(rejection.figures.get("evidence", Evidence.ANALYTIC.value)) for rejection in group}
    return f" ({formatting.listed(sorted(tiers))})"


def _rejection_group(group: Sequence[Rejection]) -> list[RenderableType]:
    shown = group[:_SHOWN_OF_A_GROUP]
    helps = ["what would help"] if any(rejection.nearest for rejection in shown) else []
    table = open_table("configuration", "reason", *helps)
    for rejection in shown:
        table.add_row(rejection.config.describe(), rejection.reason, *([rejection.nearest or "—"] if helps else []))
    left = len(group) - _SHOWN_OF_A_GROUP
    return [table, *([f"and {formatting.counted(left, 'more row')}; --format json lists all"] if left > 0 else [])]


def _estimate(candidate: Candidate) -> tuple[str, str]:
    estimate = candidate.estimate
    if estimate is None:
        return formatting.rate(None), formatting.size(None)
    return formatting.rate(estimate.time.samples_per_second), formatting.size(estimate.memory.total)


def notes_section(notes: Sequence[str]) -> list[RenderableType]:
    """Return notes as a list under their title; empty where there are none."""
    if not notes:
        return []
    bullets = Table.grid(padding=(0, 1, 0, 0))
    for note in notes:
        bullets.add_row("  -", note)
    return [heading("Notes"), bullets]
