"""What a compiler said of one configuration, as the document of `estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoplan.errors import WorkerError
from autoplan.plan.records import CompilerEvidence, Evidence, Failure, FailureKind, to_plain
from cost_models.config import TrainConfig

SCHEMA = 1


def compiled_document(
    analytic: Mapping[str, Any], config: TrainConfig, found: CompilerEvidence | Failure
) -> dict[str, Any]:
    """`Estimate.to_dict()` with what the compiler said in its place, and the estimate itself under `analytic`.

    A program that the compiler finds too large is an answer: `fits` is false, and the total is what it asks for.
    WorkerError where the compiler did not answer.
    """
    memory = analytic["memory"]
    document = {
        "schema": SCHEMA,
        "hardware": analytic["hardware"],
        "evidence": Evidence.COMPILED.value,
        "config": config.to_dict(),
    }
    if isinstance(found, Failure):
        total = _asked_for(found, config)
        return {
            **document,
            "memory": {**_limits(memory), "per_device_bytes": {"total": total}, "fits": False, "may_fit": False},
            "time": None,
            "failure": to_plain(found),
            "analytic": dict(analytic),
        }
    fits = found.memory.must_fit_bytes <= memory["capacity_bytes"] * (1 - memory["headroom"])
    return {
        **document,
        "memory": {
            **_limits(memory),
            "per_device_bytes": _parts(found),
            "must_fit_bytes": found.memory.must_fit_bytes,
            "fits": fits,
            "may_fit": fits,  # a compiler's figure is no interval
        },
        "time": found.time,
        "compiler": to_plain(found),
        "analytic": dict(analytic),
    }


def _parts(found: CompilerEvidence) -> dict[str, int | None]:
    plain = to_plain(found.memory)
    return {name.removesuffix("_bytes"): size for name, size in plain.items() if name.endswith("_bytes")}


def _limits(memory: Mapping[str, Any]) -> dict[str, Any]:
    return {name: memory[name] for name in ("capacity_bytes", "headroom")}


def _asked_for(failure: Failure, config: TrainConfig) -> int | None:
    if failure.kind is FailureKind.COMPILE_OOM:
        return failure.needed_bytes
    raise WorkerError(f"{config.describe()} could not be compiled ({failure.kind.value}: {failure.message})")
