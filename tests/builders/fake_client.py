"""A client in memory, for the planner's decisions that no real machine makes on demand.

It answers every job at once from a small made-up machine: a micro-step takes `launch + global batch x per sample`
seconds, and whatever a test plants. Real workers are met in `test_jobs.py` and at the end of `test_planner.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autoplan.jobs.messages import Job, JobKind, JobResult, Observation, SplitProbe
from autoplan.plan.records import Failure, FailureKind
from cost_models.config import TrainConfig
from cost_models.execution import Origin
from cost_models.workload.serialization import workload_to_dict
from tests.builders import estimates, plans
from tests.builders.observations import observation
from tests.builders.workloads import dense

LAUNCH_SECONDS = 0.01
SAMPLE_SECONDS = 0.0001


def micro_step_seconds(config: TrainConfig) -> float:
    """The made-up machine, the same for every precision."""
    return LAUNCH_SECONDS + SAMPLE_SECONDS * config.batch.global_size


def equal_losses(config: TrainConfig, seed: int, updates: int) -> list[float]:
    """Losses that depend on the seed alone."""
    return [1.0 / (update + 1) + 0.001 * seed for update in range(updates)]


@dataclass
class FakeClient:
    """`plant` may answer a job in its own way, raise, or return None for the usual answer. Every job is kept."""

    facts: Observation = field(default_factory=observation)
    seconds: Callable[[TrainConfig], float] = micro_step_seconds
    losses: Callable[[TrainConfig, int, int], list[float]] = equal_losses
    updated: Callable[[TrainConfig, int], dict[str, Any]] = lambda config, seed: {}
    changed: Callable[[TrainConfig], dict[str, Any] | None] = lambda config: None
    compiler: Callable[[TrainConfig], dict[str, Any]] = lambda config: compiled(2**20)
    plant: Callable[[Job], JobResult | Failure | None] = lambda job: None
    jobs: list[Job] = field(default_factory=list)

    def __call__(self, backend: str = "jax") -> FakeClient:
        return self

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def run(self, job: Job, *, log: Any = None, on_phase: Any = None, **limits: Any) -> JobResult:
        """Answer at once."""
        self.jobs.append(job)
        planted = self.plant(job)
        if isinstance(planted, JobResult):
            return planted
        if isinstance(planted, Failure):
            return JobResult(None, planted, 1.0)
        if on_phase is not None:
            on_phase("measure")
        return JobResult(self.answer(job), None, 1.0)

    def of_kind(self, kind: JobKind) -> list[TrainConfig]:
        """The configurations of the jobs of one kind, in order."""
        return [job.config for job in self.jobs if job.kind is kind and job.config]

    def answer(self, job: Job) -> dict[str, Any]:
        config = job.config or self.facts.config
        match job.kind:
            case JobKind.OBSERVE:
                return self.observed(job.backend)
            case JobKind.TRACE:
                return {"observation": self.observed(job.backend), "workload": _workload(config)}
            case JobKind.SPLIT:
                return self._probed().model_dump(mode="json")
            case JobKind.VALIDATE:
                return {"rows": job.options.get("validation_rows", 1)}
            case JobKind.MEASURE:
                return self._measured(config, job)
            case JobKind.LOWER:
                return self.compiler(TrainConfig.from_dict(job.options["lowered"]))
            case _:
                return self._updates(config, job)

    def observed(self, backend: str) -> dict[str, Any]:
        facts = self.facts.model_dump(mode="json")
        return facts | {
            "config": {**facts["config"], "backend": backend},
            "environment": {**facts["environment"], "backend": backend},
        }

    def _updates(self, config: TrainConfig, job: Job) -> dict[str, Any]:
        """Answer for all seeds; what `changed` says of a configuration is compared with a run of the baseline."""
        updates = job.options["updates"]
        runs = [
            {"losses": self.losses(config, seed, updates), "seed": seed, "applied": updates, "weight_change": 1.0}
            | self.updated(config, seed)
            for seed in job.options["seeds"]
        ]
        equal = {"weights": 0.0, "variables": []}
        compared = self.changed(config) or equal if "compare_with" in job.options else None
        return {"runs": runs, "compared": compared}

    def _probed(self) -> SplitProbe:
        """The facts by name, as a probe would find them."""
        draws = ["dropout (Dropout)"] if self.facts.random_layers else []
        statistics = ["norm (BatchNormalization)"] if self.facts.batch_norm else []
        return self.facts.probe or SplitProbe(split="same", random_draws=draws, batch_statistics=statistics)

    def _measured(self, config: TrainConfig, job: Job) -> dict[str, Any]:
        seconds = self.seconds(config)
        figures = plans.measurement(seconds, size=config.batch.global_size, accumulation=config.batch.accumulation)
        extras = [name for name in ("validation", "checkpoint", "remainder") if job.options.get(name)]
        return figures | {"group_seconds": [seconds] * 8, "groups": 8, "wall_seconds": 2.0, "notes": extras}


def _workload(config: TrainConfig) -> dict[str, Any]:
    made = dense(64, 64, batch=config.batch.local)
    changed = {**vars(Origin.of(config)), "backend": config.backend}
    return workload_to_dict(dataclasses.replace(made, **changed))


def compiled(total_bytes: int, micro_step_seconds: float | None = None, accumulation: int = 1) -> dict[str, Any]:
    """A program as a worker reports it that needs so much; its time only where one is given."""
    memory = {"argument_bytes": 0, "output_bytes": 0, "alias_bytes": 0}
    time = None
    if micro_step_seconds is not None:
        time = estimates.time(micro_step_seconds, accumulation=accumulation).to_dict()
    evidence = {
        "target": "XLA:TPU v5e:2x2",
        "versions": {"jax": "0.10.2"},
        "lower_seconds": 0.5,
        "compile_seconds": 1.5,
        "memory": {**memory, "temporary_bytes": total_bytes, "total_bytes": total_bytes},
        "time": time,
    }
    return {"evidence": evidence}


def failure(kind: FailureKind = FailureKind.OOM, message: str = "too large") -> Failure:
    """A failure as a worker reports it."""
    return Failure(kind=kind, message=message)
