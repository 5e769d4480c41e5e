"""Estimates with given figures, for decisions that depend on nothing else of an estimate."""

from __future__ import annotations

from typing import Any

from autoplan.tuning.candidate_estimate import CandidateEstimate
from cost_models.config import TrainConfig
from cost_models.estimate import Estimate
from cost_models.memory import Capacity, MemoryCost
from cost_models.time.cost import TimeCost
from tests.builders.observations import GIB

_NOTHING = dict.fromkeys(MemoryCost.__dataclass_fields__, 0)


def memory(total: int, *, low: int | None = None, high: int | None = None, **components: int) -> MemoryCost:
    """The bytes of a device; without components all of them are activations."""
    known = components or {"activations": total}
    ends = {"total_low": total if low is None else low, "total_high": total if high is None else high}
    return MemoryCost(**{**_NOTHING, **known, "total": total, **ends})


def time(micro_step_seconds: float, *, accumulation: int = 1, samples: int = 1, **parts: Any) -> TimeCost:
    """The time of a micro-step; without parts all of it is arithmetic."""
    seconds = {"compute_seconds": 0.0, "memory_seconds": 0.0, "communication_seconds": 0.0, "overhead_seconds": 0.0}
    figures = {
        "micro_step_seconds": micro_step_seconds,
        "update_seconds": micro_step_seconds * accumulation,
        "samples_per_second": samples / micro_step_seconds,
        "mfu": None,
        "bound": "compute",
    }
    known = parts or {"compute_seconds": micro_step_seconds}
    return TimeCost(**{**seconds, **figures, **known})


def estimate(
    own: TrainConfig,
    *,
    update_seconds: float = 1.0,
    needed: int = GIB,
    least: int | None = None,
    capacity: int = 10 * GIB,
    headroom: float = 0.0,
    **parts: Any,
) -> Estimate:
    """An estimate of a configuration; `needed` and `least` are the ends of the interval of its memory."""
    accumulation = own.batch.accumulation
    cost = time(update_seconds / accumulation, accumulation=accumulation, samples=own.batch.global_size, **parts)
    return Estimate(
        config=own,
        hardware="made-up",
        memory=memory(needed, low=needed if least is None else least),
        time=cost,
        capacity=Capacity(capacity, headroom),
        accuracy=None,
        model_flops=None,
        unknown_ops=(),
    )


def candidate(
    own: TrainConfig, *, samples: int | None = None, outside_bytes: int = 0, **figures: Any
) -> CandidateEstimate:
    """The estimate of a configuration as tuning ranks it."""
    return CandidateEstimate.of(estimate(own, **figures), samples, outside_bytes)
