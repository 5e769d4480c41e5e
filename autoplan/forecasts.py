"""Forecasts for a whole space: one trace for each structure of the training step, then arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from autoplan.bench import Bench
from autoplan.errors import WorkloadError
from autoplan.jobs import Observation
from autoplan.plan import Evidence, Failure, Rejection
from autoplan.prune import Forecast
from cost_models.config import Batch, Mesh, TrainConfig
from cost_models.estimate import estimate_many
from cost_models.workload import Workload

Structure = tuple[str, str]
"""What changes the operations of a training step: precision and rematerialization."""

TRACES_AT_ONCE = 2


def structure_of(config: TrainConfig) -> Structure:
    """The structure that a configuration runs; batch and mesh are arithmetic on it."""
    return config.precision.value, config.remat.mode.value


def trace_structures(bench: Bench, configs: Sequence[TrainConfig]) -> dict[Structure, Workload | Failure]:
    """Trace each structure once, on one device and without accumulation, at the first batch that has it."""
    first = {structure_of(config): _alone(config) for config in reversed(configs)}
    pool = ThreadPoolExecutor(TRACES_AT_ONCE)
    try:
        answers = list(pool.map(bench.trace, first.values()))
    finally:
        # Not waited for: after Ctrl-C the client ends the jobs, and with them the threads.
        pool.shutdown(wait=False, cancel_futures=True)
    return {
        structure: answer if isinstance(answer, Failure) else answer[1]
        for structure, answer in zip(first, answers, strict=True)
    }


def _alone(config: TrainConfig) -> TrainConfig:
    return config.with_(batch=Batch(config.batch.local), mesh=Mesh())


def forecast(
    bench: Bench,
    configs: Sequence[TrainConfig],
    traced: Mapping[Structure, Workload | Failure],
    observation: Observation,
    headroom: float,
) -> tuple[list[Forecast], list[Rejection]]:
    """A Forecast for each configuration whose structure could be traced; one Rejection for a structure that could not.

    WorkloadError when none could.
    """
    forecasts: list[Forecast] = []
    rejected: list[Rejection] = []
    for structure, workload in traced.items():
        group = [config for config in configs if structure_of(config) == structure]
        if isinstance(workload, Failure):
            rejected += _untraceable(group, workload)
            continue
        estimates = estimate_many(workload, group, bench.cluster, headroom=headroom)
        forecasts += [
            Forecast.from_estimate(config, estimate.to_dict(), observation.samples)
            for config, estimate in zip(group, estimates, strict=True)
        ]
    if not forecasts:
        reasons = "; ".join(rejection.reason for rejection in rejected)
        raise WorkloadError(f"the training step could not be traced under any configuration: {reasons}")
    return forecasts, rejected


def _untraceable(group: Sequence[TrainConfig], failure: Failure) -> list[Rejection]:
    return [
        Rejection(
            config=group[0].to_dict(),
            stage="known_issue",
            reason=f"the training step cannot be built so: {failure.message}",
            figures={"failure": failure.kind.value, "configurations": len(group), "evidence": Evidence.ANALYTIC.value},
            nearest=None,
        )
    ]
