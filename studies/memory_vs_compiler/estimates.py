"""Estimates of all compiled points, one row of `estimates.csv` each, from traces that are stored in a folder."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import time
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from inspect import getsource
from pathlib import Path
from typing import Any

from cost_models.execution import platform_of
from cost_models.hardware.platform import TargetPlatform
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from studies.memory_vs_compiler.points import Point
from studies.memory_vs_compiler.truths import compiled, with_model

ESTIMATES = Path(__file__).resolve().parent / "estimates.csv"
_POINT = ("target", "model", "precision", "optimizer", "batch", "accumulation", "attention")
_TRACED_AT = 2
"""The batch of a trace, as a multiple of a model's smallest batch. The step is traced at this batch and at twice it."""


def write(traces: Path | None, targets: Collection[str] = ()) -> None:
    """Estimate points of some targets, or all, again. Traces are stored in the folder `traces`; None traces again."""
    from cost_models.memory import program_memory

    with ESTIMATES.open(newline="") as file:
        kept = {_point(row): row for row in csv.DictReader(file)}
    started, rows = time.monotonic(), []
    for truth in sorted(compiled(), key=lambda one: (*one.point.trace, one.point.target, *one.point.plain()[4:])):
        point = truth.point
        if point in kept and targets and point.target not in targets:
            rows.append(kept[point])
            continue
        cost = program_memory(workload_of(point, traces), point.config, point.cluster).to_dict()
        rows.append(
            {**dict(zip(_POINT, point.plain(), strict=True)), **{f"{name}_bytes": size for name, size in cost.items()}}
        )
    with ESTIMATES.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} points estimated in {time.monotonic() - started:.0f} s\n")


def read() -> dict[Point, dict[str, int]]:
    """Return, for each point, bytes by component with `total`, `total_low` and `total_high`."""
    with ESTIMATES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        _point(row): {name.removesuffix("_bytes"): int(size) for name, size in row.items() if name not in _POINT}
        for row in rows
    }


def _point(row: dict[str, str]) -> Point:
    return Point.read([row[name] for name in _POINT])


def workload_of(point: Point, traces: Path | None) -> Any:
    """Return the Workload of one micro-step as the point's chip runs it, traced or read from the folder of traces."""
    return _workload(point.trace, platform_of(point.config, point.cluster), traces)


@lru_cache(maxsize=128)
def _workload(trace: tuple[str, str, str, str], platform: TargetPlatform, traces: Path | None) -> Any:
    name = "-".join(trace).removesuffix("-auto")
    if traces is None:
        return _traced(trace, platform)
    on_platform = f"{name}-on-{str(platform).replace(' ', '-')}"
    for kept in (_kept_at(traces, name), _kept_at(traces, on_platform)):
        if kept.exists():
            return workload_from_dict(json.loads(gzip.decompress(kept.read_bytes())))
    workload = _traced(trace, platform)
    kept = _kept_at(traces, on_platform if workload.answers else name)  # without a question it is the same everywhere
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(gzip.compress(json.dumps(workload_to_dict(workload)).encode(), 1))
    return workload


def _kept_at(traces: Path, name: str) -> Path:
    """Return the file of a trace. A file without a version in its name is used as it is."""
    plain = traces / f"{name}.json.gz"
    return plain if plain.exists() else traces / f"{name}-{_trace_version()}.json.gz"


@lru_cache(maxsize=1)
def _trace_version() -> str:
    """Return a digest of the sources that make a trace: the models, the tracing, and the form of a Workload."""
    from autoplan.worker import synthetic_data, trace
    from cost_models.workload import affine, workload
    from studies.memory_vs_compiler import attention, heads, images, models, signals, small

    modules = (attention, heads, images, models, signals, small, synthetic_data, workload, affine)
    tracing = sorted((path for path in files(trace).iterdir() if path.name.endswith(".py")), key=lambda one: one.name)
    digest = hashlib.sha256()
    for content in (*(path.read_bytes() for path in tracing), *(getsource(module).encode() for module in modules)):
        digest.update(content)
    return digest.hexdigest()[:12]


def _traced(trace: tuple[str, str, str, str], platform: TargetPlatform) -> Any:
    from autoplan.worker.trace.target_platform import seen_as

    model, precision, optimizer, attention = trace
    point = Point("CPU", model, precision, optimizer, 1, attention=attention)
    with seen_as(platform) as answers:
        return replace(with_model(point, _step), answers=answers.given)


def _step(model: Any, point: Point) -> Any:
    from autoplan.worker.synthetic_data import synthetic_specs
    from autoplan.worker.trace.train_step import trace_train_step
    from studies.memory_vs_compiler.models import MODELS

    batch = _TRACED_AT * MODELS[point.model].batch
    return trace_train_step(model, synthetic_specs(model, batch), local_batch=batch, precision=point.precision)
