"""Configurations of the study's models, and estimates of their micro-steps from the rates of this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.runner import JobRunner
from autoplan.machine import local_hardware
from autoplan.plan.records import Failure
from autoplan.sources import source
from cost_models import Batch, Cluster, Precision, Remat, RematMode, TrainConfig, Workload, step_time
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from studies import harness
from studies.time_vs_this_cpu import cases, summary

HERE = Path(__file__).resolve().parent
TABLE = HERE / "results.csv"
PROFILE = HERE / "profile.json"
"""The rates of the machine, measured by `autoplan hardware probe` before the trials. Estimates know no more."""
LIMIT_SECONDS = 300.0


def label(config: TrainConfig) -> str:
    """Return the name of a configuration in the rows of the table and of the ledger, and in names of traces.

    Rows keep the wording with which they were stored, although `describe` changed since.
    """
    words = config.describe().replace("keep_freed_memory on", summary.KEPT.removeprefix(", "))
    return re.sub(r"(batch \d+), accumulation (\d+)", r"\1x\2", words)


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


def runner_of(model: str, client: Client, cluster: Cluster, logs: Path | None = None) -> JobRunner:
    """Return the jobs that tuning uses, for one model and its baseline."""
    spec = source.resolve(f"{cases.module_of(model)}:{model}")
    jobs = JobRunner(client, spec, "jax", cluster, Clock.start(None), logs=logs, limit_seconds=LIMIT_SECONDS)
    return jobs.with_(baseline=jobs.observe().config)


def local_cluster() -> Cluster:
    return local_hardware.resolve(local_hardware.LOCAL, profile=json.loads(PROFILE.read_text(encoding="utf-8")))


def predict(names: Sequence[str], traces: Path) -> None:
    """Add the estimate to every measured row, part by part, in seconds per micro-step."""
    cluster, rows = local_cluster(), [row for row in summary.read(TABLE) if not row["error"]]
    with Client() as client:
        for name in names:
            for config in configs(name):
                own = [row for row in rows if (row["model"], row["config"]) == (name, label(config))]
                if own:
                    workload = step_of(name, config, client, cluster, traces)
                    estimated = estimated_row(workload, config, cluster)
                    harness.write_rows(TABLE, [{**row, **estimated} for row in own], key="key")
            print(f"estimated {name}", flush=True)


def estimated_row(workload: Workload, config: TrainConfig, cluster: Cluster) -> dict[str, Any]:
    """Return the columns of an estimate."""
    cost = asdict(step_time(workload, config, cluster))
    parts = ("compute_seconds", "memory_seconds", "communication_seconds", "overhead_seconds", "micro_step_seconds")
    return {"samples": config.batch.global_size, **{f"predicted_{part}": cost[part] for part in parts}}


def step_of(model: str, config: TrainConfig, client: Client, cluster: Cluster, traces: Path) -> Workload:
    """Return a model's step under a configuration, from the folder of traces or traced now."""
    place = _place(model, config, traces)
    if not place.exists():
        answer = runner_of(model, client, cluster).trace(config)
        if isinstance(answer, Failure):
            raise harness.StudyFailed(f"{model} under {config.describe()} could not be traced: {answer.message}")
        traces.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(json.dumps(workload_to_dict(answer[1])).encode(), mtime=0))
    return stored_step(model, config, traces)


def stored_step(model: str, config: TrainConfig, traces: Path) -> Workload:
    """Return a model's step from the folder of traces."""
    return workload_from_dict(json.loads(gzip.decompress(_place(model, config, traces).read_bytes())))


def _place(model: str, config: TrainConfig, traces: Path) -> Path:
    digest = hashlib.sha256(label(config).encode()).hexdigest()[:12]
    return traces / f"{model}-{digest}.json.gz"
