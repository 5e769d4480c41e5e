"""What trials teach the forecasts: how many times as long each kind of execution takes as was predicted for it.

A training step is traced on JAX and priced as XLA would fuse it. Another backend dispatches at another cost and fuses
less, and without a compiler nothing is fused at all; arithmetic knows that roughly, and the first trials know better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autoplan.plan import TrialRecord
from autoplan.prune import Forecast
from cost_models.config import TrainConfig

WORTH_TELLING = 1.5
"""A correction of less than this, either way, is within what the analytic tier claims."""


@dataclass(frozen=True, order=True)
class Execution:
    """What shares one correction: a backend, with or without its compiler."""

    backend: str
    jit_compile: bool

    @classmethod
    def of(cls, config: TrainConfig) -> Execution:
        return cls(config.backend, config.jit_compile)

    def __str__(self) -> str:
        return f"{self.backend} {'with' if self.jit_compile else 'without'} jit_compile"


def factors(records: Iterable[TrialRecord]) -> dict[Execution, float]:
    """Measured over predicted seconds of an update, the median over the trials of each kind of execution."""
    ratios: dict[Execution, list[float]] = {}
    for record in records:
        if record.measurement is not None and record.predicted_update_seconds:
            ratio = record.measurement.update_seconds / record.predicted_update_seconds
            ratios.setdefault(Execution.of(TrainConfig.from_dict(record.config)), []).append(ratio)
    return {execution: median(found) for execution, found in ratios.items()}


def reordered(
    shortlist: Sequence[TrainConfig], forecasts: Mapping[TrainConfig, Forecast], records: Iterable[TrialRecord]
) -> list[TrainConfig]:
    """The shortlist by corrected prediction, but for the first of each mesh and backend, which stay in front.

    An execution that no trial has shown is taken to be as near its prediction as the best known: it gets its chance.
    The order stays where there is one kind of execution, or nothing was forecast or measured.
    """
    known = factors(records)
    if not known or len({Execution.of(config) for config in shortlist}) < 2 or not forecasts:
        return list(shortlist)
    hope = min(known.values())

    def seconds(config: TrainConfig) -> float:
        forecast = forecasts.get(config)
        return float("inf") if forecast is None else forecast.seconds_per_sample * known.get(Execution.of(config), hope)

    firsts = {(config.mesh, config.backend): config for config in reversed(shortlist)}
    heads = [config for config in shortlist if firsts[config.mesh, config.backend] == config]
    return [*heads, *sorted((config for config in shortlist if config not in heads), key=seconds)]


def told(records: Sequence[TrialRecord]) -> list[str]:
    """A line for each kind of execution whose trials were far from what was predicted."""
    return [
        f"on {execution} an update took {factor:.2g} times what was predicted (measured over analytic, median)"
        for execution, factor in sorted(factors(records).items())
        if not 1 / WORTH_TELLING <= factor <= WORTH_TELLING
    ]
