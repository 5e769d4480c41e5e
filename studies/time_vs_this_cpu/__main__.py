"""How accurate are estimated times on a local CPU, before and after three trials?

    python -m studies.time_vs_this_cpu [--rounds N] [MODEL ...]  # measure; rows of other models stay
    python -m studies.time_vs_this_cpu --again [--traces FOLDER] [MODEL ...]  # estimate measured rows again
    python -m studies.time_vs_this_cpu --summary
    python -m studies.time_vs_this_cpu --without RULE [--traces FOLDER]  # what one rule of cost_models.time is worth
    python -m studies.time_vs_this_cpu --ledger [--traces FOLDER]        # the same of every rule; writes ledger.csv

Every model is measured in several configurations, each in a process of its own. Each round measures all of them in
a random order, so that other work on the machine affects all alike. Several rounds are needed because processes of one
configuration differ by more than the groups of micro-steps of one process.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.plan.records import Failure, Outcome
from cost_models import TrainConfig
from studies import harness
from studies.time_vs_this_cpu import cases, summary
from studies.time_vs_this_cpu.estimates import (
    LIMIT_SECONDS,
    PROFILE,
    TABLE,
    configs,
    label,
    local_cluster,
    predict,
    runner_of,
)

HERE = Path(__file__).resolve().parent
QUESTION = "How accurate are estimated times on this CPU?"


def key(model: str, config: TrainConfig, number: int) -> str:
    return f"{model}: {label(config)}: round {number}"


def probed(client: Client) -> dict[str, Any]:
    """Measure the rates of the machine and store them."""
    result = client.run(Job(kind=JobKind.PROBE), time_limit_seconds=2 * LIMIT_SECONDS)
    if result.value is None:
        raise harness.StudyFailed(f"the machine could not be probed: {result.failure}")
    PROFILE.write_text(json.dumps(result.value, indent=1) + "\n", encoding="utf-8")
    return result.value


def row_of(model: str, config: TrainConfig, number: int, outcome: Outcome) -> dict[str, Any]:
    """Return the row of one trial, in seconds per micro-step."""
    name = key(model, config, number)
    row = {"key": name, "model": model, "config": label(config), "round": number, **harness.provenance()}
    if isinstance(outcome, Failure):
        return {**row, "error": outcome.message}
    return {
        **row,
        "error": "",
        "measured": outcome.micro_step_seconds,
        "low": outcome.micro_step_seconds_low,
        "high": outcome.micro_step_seconds_high,
    }


def drawn(names: Sequence[str], rounds: Sequence[int]) -> Iterator[tuple[str, TrainConfig, int]]:
    """Yield the trials of all rounds, each round in a random order."""
    for number in rounds:
        trials = [(name, config, number) for name in names for config in configs(name)]
        random.Random(number).shuffle(trials)
        yield from trials


def measure(names: Sequence[str], rounds: Sequence[int]) -> None:
    """Measure, and write one row after each trial. The machine is probed before the first round."""
    trials = list(drawn(names, rounds))
    with harness.lab() as lab, Client() as client:
        if 1 in rounds or not PROFILE.exists():
            probed(client)
        cluster = local_cluster()
        runners = {name: runner_of(name, client, cluster, logs=lab.folder / name) for name in names}
        for at, (name, config, number) in enumerate(trials, 1):
            row = row_of(name, config, number, runners[name].measure(config, f"trial-{at}"))
            harness.write_rows(TABLE, [row], key="key")
            result = row["error"].partition("\n")[0] or f"{row['measured'] * 1e3:.4g} ms"
            print(f"{at}/{len(trials)} {row['key']}: {result}", flush=True)


def main() -> None:
    parser = harness.parser("studies.time_vs_this_cpu", __doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rounds", default="1,2,3", help="numbers of the rounds to measure; each has a random order")
    parser.add_argument("--again", action="store_true", help="estimate again, measure nothing")
    parser.add_argument("--summary", action="store_true", help="print the tables, measure and estimate nothing")
    parser.add_argument("--without", action="append", metavar="RULE", help="measure what one rule is worth")
    parser.add_argument("--ledger", action="store_true", help="measure what every rule is worth; writes ledger.csv")
    parser.add_argument("--traces", type=Path, help="folder that keeps traced steps")
    asked = parser.parse_args()
    traces = asked.traces or Path(tempfile.gettempdir()) / "autoplan-time-vs-this-cpu"
    if asked.ledger or asked.without:
        from studies.time_vs_this_cpu import ledger

        ledger.measure(asked.without or [], traces)
        return
    names = harness.chosen(cases.FIRST | cases.LATER, asked.models)
    harness.header(QUESTION)
    if not asked.again and not asked.summary:
        measure(names, [int(number) for number in asked.rounds.split(",")])
    if not asked.summary:
        predict(names, traces)
    summary.show(TABLE)


if __name__ == "__main__":
    main()
