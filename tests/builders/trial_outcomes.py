"""Outcomes and estimates of configurations, made up for the decisions of the rescue."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.plan.records import Failure, FailureKind, Measurement, TrialRecord
from autoplan.tuning.candidate_estimate import CandidateEstimate
from cost_models.config import TrainConfig
from tests.builders import plans
from tests.builders.estimates import candidate
from tests.builders.observations import GIB


def estimates(
    gib_by_config: Mapping[TrainConfig, float], *, capacity: float = 1.0, headroom: float = 0.0, low: float = 0.9
) -> dict[TrainConfig, CandidateEstimate]:
    """Estimates whose upper ends are given in GiB, the lower ends being a share of them; capacity in GiB."""
    return {
        one: candidate(
            one, needed=int(gib * GIB), least=int(gib * low * GIB), capacity=int(capacity * GIB), headroom=headroom
        )
        for one, gib in gib_by_config.items()
    }


def ran(own: TrainConfig, number: int = 0) -> TrialRecord:
    """A configuration that was measured."""
    figures = plans.measurement(size=own.batch.global_size, accumulation=own.batch.accumulation)
    measured = Measurement.model_validate(figures)
    return TrialRecord(number=number, config=own, outcome="measured", measurement=measured)


def failed(
    own: TrainConfig, kind: FailureKind = FailureKind.OOM, *, held: float | None = None, number: int = 0
) -> TrialRecord:
    """A configuration that failed; `held` in GiB."""
    failure = Failure(kind=kind, message="too large", held_bytes=None if held is None else int(held * GIB))
    return TrialRecord(number=number, config=own, outcome="failed", failure=failure)
