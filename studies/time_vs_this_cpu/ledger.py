"""The ledger of the time rules of CPUs: what each is worth on the configurations that were measured here.

As `studies.time_vs_published.ledger`, with a row for each group of models. Steps are traced once into a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from autoplan.jobs.client import Client
from cost_models import Cluster, TrainConfig, Workload, step_time
from cost_models.time.software import Software
from studies import harness
from studies.time_vs_published.ledger import Entry, Quality, entry, read, rules, write
from studies.time_vs_this_cpu import cases, summary
from studies.time_vs_this_cpu.estimates import TABLE, configs, label, local_cluster, step_of

LEDGER = TABLE.with_name("ledger.csv")

Steps = dict[tuple[str, str], tuple[Workload, TrainConfig]]
"""Traced steps by model and configuration in words."""


def measure(names: Sequence[str], folder: Path) -> None:
    """Measure rules, print their rows and write them to the ledger."""
    cluster, rows = local_cluster(), summary.whole(TABLE)
    steps = _traced(folder, cluster, [(row["model"], row["config"]) for row in rows])
    known = {(one.rule, one.group): one for one in read(LEDGER)}
    start = _predicted(rows, steps, cluster, frozenset())
    for name in names or rules():
        if name not in rules():
            raise harness.StudyFailed(f"no rule of time is named {name}; known rules are {', '.join(rules())}")
        found = _predicted(rows, steps, cluster, frozenset({name}))
        for group in (*cases.GROUPS, "all"):
            own = _entry(name, group, start, found, known)
            if own.changed:
                known[name, group] = own
                print(own, flush=True)
        write(known.values(), LEDGER)


def _entry(
    name: str,
    group: str,
    start: Sequence[summary.Row],
    found: Sequence[summary.Row],
    known: dict[tuple[str, str], Entry],
) -> Entry:
    pairs = [
        (one, other) for one, other in zip(start, found, strict=True) if group in ("all", cases.group(one["model"]))
    ]
    changed = sum(summary.raw(one) != summary.raw(other) for one, other in pairs)
    note = known[name, group].note if (name, group) in known else ""
    before, after = (_quality([pair[which] for pair in pairs]) for which in (0, 1))
    return entry(name, group, len(pairs), changed, before, after, note)


def _quality(rows: Sequence[summary.Row]) -> Quality:
    pairs = summary.separated_pairs(rows)
    error = 100 * fmean(summary.miss(row, summary.raw(row)) for row in rows)
    return Quality(round(error, 2), None, round(summary.tau(pairs, summary.raw, summary.measured), 4))


def _predicted(
    rows: Sequence[summary.Row], steps: Steps, cluster: Cluster, without: frozenset[str]
) -> list[summary.Row]:
    software, found = Software(without=without), []
    for row in rows:
        workload, config = steps[row["model"], row["config"]]
        seconds = step_time(workload, config, cluster, software=software).micro_step_seconds
        found.append({**row, "predicted_micro_step_seconds": seconds})
    return found


def _traced(folder: Path, cluster: Cluster, wanted: Sequence[tuple[str, str]]) -> Steps:
    """The steps of these models and configurations."""
    with Client() as client:
        return {
            (model, label(config)): (step_of(model, config, client, cluster, folder), config)
            for model in dict.fromkeys(model for model, _ in wanted)
            for config in configs(model)
            if (model, label(config)) in wanted
        }
