"""How often is a later median inside the interval that a plan states, and would other rules do better?

    python -m studies.intervals [--repeats N] [--groups N] [--group-seconds S] [CASE ...]
    python -m studies.intervals --evaluate        # evaluate the rules again on raw.json, run nothing

N processes measure each case. The cases alternate, so that the repeats of a case are minutes apart. A plan computes its
intervals from four runs of each of two configurations (the trial and the verification, of the baseline and of the
winner). The rule `plan` does the same with the first four runs of two cases, and counts the later medians inside.
The other rules use one process: for each pair (earlier run, later run) of a case, they count whether the later median
is inside the interval of the earlier run.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.plan.records import Measurement
from autoplan.sources import source
from autoplan.tuning.verification.process_spread import restated, spread
from autoplan.tuning.verification.statistics import Timed
from cost_models.config import Batch, TrainConfig
from studies import harness

HERE = Path(__file__).resolve().parent
TARGET = 0.90
LIMIT_SECONDS = 600.0
DRAWS = 2000
PLAN_RUNS = 4
"""Runs of a configuration behind a plan: one trial and three pairs."""
STRETCH = 3
"""Consecutive groups in a stretch."""
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlp-64": ("mlp", ()),
    "mlp-1024": ("mlp", ("--batch-size", "1024", "--samples", "16384")),
    "decoder-16": ("decoder", ()),
    "resnet20-16": ("resnet20", ("--batch-size", "16", "--blocks", "1")),
    "schedule-32": ("schedule", ()),
}

Interval = tuple[float, float]
Run = dict[str, Any]


def run_once(client: Client, case: str, options: dict[str, Any]) -> Run:
    """Measure a case in one process. Returns the median, the interval and the groups, in seconds per micro-step."""
    script, arguments = CASES[case]
    spec = source.resolve(str(harness.SCRIPTS / f"{script}.py"), arguments)
    result = client.run(Job(kind=JobKind.MEASURE, source=spec, options=options), time_limit_seconds=LIMIT_SECONDS)
    if result.value is None:
        raise harness.StudyFailed(f"{case}: {result.failure}")
    found = Measurement.model_validate(result.value)
    return {
        "case": case,
        "at": time.time(),
        "median": found.micro_step_seconds,
        "low": found.micro_step_seconds_low,
        "high": found.micro_step_seconds_high,
        "group_seconds": found.group_seconds,
        "measurement": found.model_dump(mode="json"),
    }


def stated(run: Run) -> Interval:
    """Return the interval of the measurement."""
    return run["low"], run["high"]


def group_range(run: Run) -> Interval:
    """Return the interval from the fastest to the slowest group."""
    return min(run["group_seconds"]), max(run["group_seconds"])


def group_bootstrap(run: Run) -> Interval:
    """Return the bootstrap interval of the median, with groups as independent samples."""
    groups = np.asarray(run["group_seconds"])
    picked = groups[np.random.default_rng(0).integers(len(groups), size=(DRAWS, len(groups)))]
    return _middle(np.median(picked, axis=1))


def stretch_bootstrap(run: Run) -> Interval:
    """Return the bootstrap interval of the medians of short stretches of consecutive groups."""
    groups = np.asarray(run["group_seconds"])
    length = min(STRETCH, len(groups))
    starts = np.random.default_rng(0).integers(len(groups) - length + 1, size=DRAWS)
    stretches = groups[starts[:, None] + np.arange(length)]
    picked = np.random.default_rng(1).integers(length, size=(DRAWS, length))
    return _middle(np.median(np.take_along_axis(stretches, picked, axis=1), axis=1))


def widened(inner: Callable[[Run], Interval], spread: float) -> Callable[[Run], Interval]:
    """Return a rule with a between-process term: log medians of two processes differ by sqrt(2) x spread."""
    factor = math.exp(1.96 * math.sqrt(2) * spread)

    def rule(run: Run) -> Interval:
        low, high = inner(run)
        return low / factor, high * factor

    return rule


def between(runs: Sequence[Run], cases: Sequence[str]) -> float:
    """Return the standard deviation of the log medians of processes, pooled over cases; NaN without repeats."""
    squares, freedom = 0.0, 0
    for case in cases:
        logs = np.log([run["median"] for run in runs if run["case"] == case])
        if len(logs) > 1:
            squares += float(np.sum((logs - logs.mean()) ** 2))
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else math.nan


def inside(runs: Sequence[Run], rule: Callable[[Run], Interval]) -> list[bool]:
    """Return, for each pair (earlier, later) of a case, whether the later median is inside the earlier interval."""
    ordered = sorted(runs, key=lambda run: float(run["at"]))
    pairs = itertools.combinations(ordered, 2)
    return [rule(earlier)[0] <= later["median"] <= rule(earlier)[1] for earlier, later in pairs]


def plan_rows(runs: Sequence[Run], cases: Sequence[str]) -> list[dict[str, Any]]:
    """Compare later medians with the intervals that a plan would state. Returns one row per case and one for all.

    The second configuration of the plan is the next case.
    """
    rows: list[dict[str, Any]] = []
    hits: list[bool] = []
    widths: list[float] = []
    ordered = {case: sorted((r for r in runs if r["case"] == case), key=lambda r: float(r["at"])) for case in cases}
    for case, other in zip(cases, [*cases[1:], cases[0]], strict=True):
        known = [timed(run) for name in (case, other) for run in ordered[name][:PLAN_RUNS]]
        between_processes = spread(known)
        found, spans = [], []
        for run in ordered[case][:PLAN_RUNS]:
            stated_by_plan = restated(timed(run).measurement, between_processes)
            low, high = stated_by_plan.micro_step_seconds_low, stated_by_plan.micro_step_seconds_high
            found += [low <= later["median"] <= high for later in ordered[case][PLAN_RUNS:]]
            spans.append(high / low - 1)
        rows.append(_row("plan", case, found, spans))
        hits, widths = hits + found, widths + spans
    return [*rows, _row("plan", "all", hits, widths)]


def timed(run: Run) -> Timed:
    """Return a run with a configuration; each case counts as another configuration."""
    batch = Batch(1 + list(CASES).index(run["case"]))
    return Timed(TrainConfig(batch=batch), Measurement.model_validate(run["measurement"]))


def evaluate(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the share inside and the median width: one row per rule and case, and one per rule over all cases.

    The between-process term of a case is estimated from the other cases, so that no rule is evaluated on its own data.
    """
    cases = list(dict.fromkeys(run["case"] for run in runs))
    rows = plan_rows(runs, cases) if len(runs) > PLAN_RUNS * len(cases) else []
    for name in ("stated", "group range", "group bootstrap", "stretch bootstrap", "stated + s", "group range + s"):
        hits: list[bool] = []
        widths: list[float] = []
        for case in cases:
            of_case = [run for run in runs if run["case"] == case]
            rule = rule_for(name, runs, [other for other in cases if other != case])
            found = inside(of_case, rule)
            spans = [rule(run)[1] / rule(run)[0] - 1 for run in of_case]
            rows.append(_row(name, case, found, spans))
            hits, widths = hits + found, widths + spans
        rows.append(_row(name, "all", hits, widths))
    return rows


def rule_for(name: str, runs: Sequence[Run], others: Sequence[str]) -> Callable[[Run], Interval]:
    plain = {
        "stated": stated,
        "group range": group_range,
        "group bootstrap": group_bootstrap,
        "stretch bootstrap": stretch_bootstrap,
    }
    inner, _, term = name.partition(" + ")
    return widened(plain[inner], between(runs, others)) if term else plain[inner]


def _row(rule: str, case: str, found: Sequence[bool], spans: Sequence[float]) -> dict[str, Any]:
    share = sum(found) / len(found) if found else None
    return {"rule": rule, "case": case, "pairs": len(found), "inside": share, "median width": float(np.median(spans))}


def _middle(values: Any) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def report(runs: Sequence[Run], origin: dict[str, str]) -> None:
    rows = evaluate(runs)
    results = [{"key": f"{row['rule']}/{row['case']}", **row, **origin} for row in rows]
    (HERE / "results.csv").unlink(missing_ok=True)
    harness.write_rows(HERE / "results.csv", results, key="key")
    harness.print_table(rows, ["rule", "case", "pairs", "inside", "median width"])
    cases = list(dict.fromkeys(run["case"] for run in runs))
    print("\nstandard deviation of the log median between processes:")
    for case in cases:
        print(f"  {case}: {between(runs, [case]):.4f}")
    print(f"  pooled: {between(runs, cases):.4f}")
    share = next((row["inside"] for row in rows if row["rule"] == "plan" and row["case"] == "all"), None)
    if share is not None:
        print(f"\ntarget: at least {TARGET:.0%} inside the intervals that a plan states; found {share:.1%}: ", end="")
        print("met" if share >= TARGET else "missed")


def main() -> None:
    parser = harness.parser("studies.intervals", __doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--repeats", type=int, default=10, help="processes per case")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-seconds", type=float, default=0.5)
    parser.add_argument("--evaluate", action="store_true", help="evaluate the rules on raw.json, run nothing")
    arguments = parser.parse_args()
    raw = HERE / "raw.json"
    if arguments.evaluate:
        kept = json.loads(raw.read_text(encoding="utf-8"))
        report(kept["runs"], kept["provenance"])
        return
    harness.header("How often is a later median inside the interval that a plan states?")
    names, origin, runs = harness.chosen(CASES, arguments.cases), harness.provenance(), []
    with harness.lab() as lab, Client() as client:
        options = {
            "groups": arguments.groups,
            "group_seconds": arguments.group_seconds,
            "cache_dir": str(lab.folder / "cache"),
        }
        for repeat, case in itertools.product(range(arguments.repeats), names):
            runs.append(run_once(client, case, options))
            print(f"{repeat + 1}/{arguments.repeats} {case}: {runs[-1]['median'] * 1e3:.4g} ms", flush=True)
            # Written after each run, so that an interrupted study can still be evaluated.
            raw.write_text(json.dumps({"provenance": origin, "options": options | {"cache_dir": ""}, "runs": runs}))
    report(runs, origin)


if __name__ == "__main__":
    main()
