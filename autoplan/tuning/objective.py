"""Computes the objective of tuning: seconds per sample of the whole planned fit, compilation included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from autoplan.jobs.messages import Observation
from autoplan.plan.records import Measurement, TrialRecord
from cost_models.config import TrainConfig

COMPILE_NOISE = 0.5
"""Compilations of one process each are alike unless one takes this share more or less than the median of all."""


@dataclass(frozen=True)
class PlannedFit:
    """The length of the script's own fit.

    samples  samples of an epoch; None when they are not known
    batches  micro-steps of an epoch whose batches differ in rows, so that no batch size gives their number
    """

    samples: int | None
    epochs: int
    batches: int | None = None

    @classmethod
    def of(cls, observation: Observation) -> PlannedFit:
        """Return the length of a fit by its data, or by the micro-steps that the script counts."""
        samples, seen = observation.samples, observation.batches
        if seen is not None and seen.differ_in_rows and not observation.rebatchable:
            return cls(samples, observation.epochs, observation.steps_per_epoch)
        if observation.steps_per_epoch is not None and (samples is None or observation.explicit_steps_per_epoch):
            samples = observation.steps_per_epoch * observation.config.batch.global_size
        return cls(samples or None, observation.epochs)

    def micro_steps(self, global_batch: int) -> int | None:
        """Return the micro-steps of the whole fit. A partial last batch of an epoch counts as one."""
        if self.batches is not None:
            return self.epochs * self.batches
        return None if self.samples is None else self.epochs * -(-self.samples // global_batch)

    def seconds(self, config: TrainConfig, measurement: Measurement, compile_seconds: float) -> float | None:
        """Return the seconds of the whole fit with its compilation; None where its length is not known."""
        micro_steps = self.micro_steps(config.batch.global_size)
        return None if micro_steps is None else compile_seconds + micro_steps * measurement.micro_step_seconds

    def seconds_per_sample(self, config: TrainConfig, measurement: Measurement, compile_seconds: float) -> float:
        """Return the objective. Where the length is not known, it is the time of a sample once compiled."""
        seconds = self.seconds(config, measurement, compile_seconds)
        if seconds is None or self.samples is None:
            return 1 / measurement.samples_per_second
        return seconds / (self.samples * self.epochs)


def compile_seconds_of(measurement: Measurement) -> float:
    """Return the compile seconds of the training step; where they are not known, the excess of the first micro-step."""
    if measurement.compile_seconds is not None:
        return measurement.compile_seconds
    return max(0.0, measurement.first_step_seconds - measurement.micro_step_seconds)


def settled_compile_seconds(measurement: Measurement, records: Iterable[TrialRecord]) -> float:
    """Return the compile time that counts for a trial: the median of all trials, unless its own clearly differs.

    One compilation is one figure without a repeat. In a short fit it weighs more than the micro-steps, and the noise of
    compilers would choose the winner.
    """
    own = compile_seconds_of(measurement)
    known = [compile_seconds_of(record.measurement) for record in records if record.measurement is not None]
    typical = median(known) if known else own
    return typical if abs(own - typical) <= COMPILE_NOISE * typical else own
