"""How accurate are estimated times on a local CPU, before and after three trials?

    python -m studies.time_vs_this_cpu [--rounds N] [MODEL ...]  # measure; rows of other models stay
    python -m studies.time_vs_this_cpu --again [MODEL ...]       # estimate measured rows again
    python -m studies.time_vs_this_cpu --summary

Every model is measured in several configurations, each in a process of its own. Each round measures all of them in
a random order, so that other work on the machine affects all alike. Several rounds are needed because processes of one
configuration differ by more than the groups of micro-steps of one process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoplan.jobs.client import Client, Job, JobKind
from autoplan.jobs.runner import Bench, Clock
from autoplan.machine import local_hardware
from autoplan.plan.records import Failure, Outcome
from autoplan.sources import source
from cost_models import Batch, Cluster, Precision, Remat, RematMode, TrainConfig, step_time
from studies import harness
from studies.time_vs_this_cpu import cases, summary

HERE = Path(__file__).resolve().parent
TABLE = HERE / "results.csv"
PROFILE = HERE / "profile.json"
"""The rates of the machine, measured by `autoplan hardware probe` before the trials. Estimates know no more."""
QUESTION = "How accurate are estimated times on this CPU?"
LIMIT_SECONDS = 300.0


def configs(model: str) -> Iterator[TrainConfig]:
    """Yield the configurations in which a model is measured."""
    if model in cases.LATER:
        yield from _fewer(cases.LATER[model])
        return
    batch = cases.FIRST[model]
    for times in (1, 2, 4, 8):
        yield TrainConfig(Batch(times * batch))
    yield TrainConfig(Batch(batch, accumulation=4))
    yield TrainConfig(Batch(2 * batch, accumulation=2))
    yield TrainConfig(Batch(2 * batch), remat=Remat(RematMode.ACTIVATIONS))
    yield TrainConfig(Batch(2 * batch), precision=Precision.MIXED_BFLOAT16)
    yield TrainConfig(Batch(8 * batch), keep_freed_memory=True)


def _fewer(batch: int) -> Iterator[TrainConfig]:
    for times in (1, 4):
        yield TrainConfig(Batch(times * batch))
    yield TrainConfig(Batch(2 * batch), precision=Precision.MIXED_BFLOAT16)
    yield TrainConfig(Batch(batch, accumulation=4))
    yield TrainConfig(Batch(4 * batch), keep_freed_memory=True)


def key(model: str, config: TrainConfig, number: int) -> str:
    return f"{model}: {config.describe()}: round {number}"


def bench_of(model: str, client: Client, cluster: Cluster, logs: Path | None = None) -> Bench:
    """Return the bench that tuning uses, for one model and its baseline."""
    spec = source.resolve(f"{cases.module_of(model)}:{model}")
    bench = Bench(client, spec, "jax", cluster, Clock.start(None), logs=logs, limit_seconds=LIMIT_SECONDS)
    return bench.with_(baseline=bench.observe().config)


def probed(client: Client) -> dict[str, Any]:
    """Measure the rates of the machine and store them."""
    result = client.run(Job(kind=JobKind.PROBE), time_limit_seconds=2 * LIMIT_SECONDS)
    if result.value is None:
        raise harness.StudyFailed(f"the machine could not be probed: {result.failure}")
    PROFILE.write_text(json.dumps(result.value, indent=1) + "\n", encoding="utf-8")
    return result.value


def local_cluster() -> Cluster:
    return local_hardware.resolve(local_hardware.LOCAL, profile=json.loads(PROFILE.read_text(encoding="utf-8")))


def row_of(model: str, config: TrainConfig, number: int, outcome: Outcome) -> dict[str, Any]:
    """Return the row of one trial, in seconds per micro-step."""
    name = key(model, config, number)
    row = {"key": name, "model": model, "config": config.describe(), "round": number, **harness.provenance()}
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
        benches = {name: bench_of(name, client, cluster, logs=lab.folder / name) for name in names}
        for at, (name, config, number) in enumerate(trials, 1):
            row = row_of(name, config, number, benches[name].measure(config, f"trial-{at}"))
            harness.write_rows(TABLE, [row], key="key")
            result = row["error"].partition("\n")[0] or f"{row['measured'] * 1e3:.4g} ms"
            print(f"{at}/{len(trials)} {row['key']}: {result}", flush=True)


def predict(names: Sequence[str]) -> None:
    """Add the estimate to every measured row, part by part, in seconds per micro-step."""
    cluster, rows = local_cluster(), [row for row in summary.read(TABLE) if not row["error"]]
    with Client() as client:
        for name in names:
            bench = bench_of(name, client, cluster)
            for config in configs(name):
                own = [row for row in rows if (row["model"], row["config"]) == (name, config.describe())]
                if own:
                    estimated = predicted(bench, config, cluster)
                    harness.write_rows(TABLE, [{**row, **estimated} for row in own], key="key")
            print(f"estimated {name}", flush=True)


def predicted(bench: Bench, config: TrainConfig, cluster: Cluster) -> dict[str, Any]:
    answer = bench.trace(config)
    if isinstance(answer, Failure):
        return {"error": answer.message}
    cost = asdict(step_time(answer[1], config, cluster))
    parts = ("compute_seconds", "memory_seconds", "communication_seconds", "overhead_seconds", "micro_step_seconds")
    return {"samples": config.batch.global_size, **{f"predicted_{part}": cost[part] for part in parts}}


def main() -> None:
    parser = harness.parser("studies.time_vs_this_cpu", __doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rounds", default="1,2,3", help="numbers of the rounds to measure; each has a random order")
    parser.add_argument("--again", action="store_true", help="estimate again, measure nothing")
    parser.add_argument("--summary", action="store_true", help="print the tables, measure and estimate nothing")
    asked = parser.parse_args()
    names = harness.chosen(cases.FIRST | cases.LATER, asked.models)
    harness.header(QUESTION)
    if not asked.again and not asked.summary:
        measure(names, [int(number) for number in asked.rounds.split(",")])
    if not asked.summary:
        predict(names)
    summary.show(TABLE)


if __name__ == "__main__":
    main()
