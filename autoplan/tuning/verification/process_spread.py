"""Estimates how much step times vary between processes, and widens the intervals of measurements by it.

Groups of one process have its memory layout, its neighbours and its minute in common, so a bootstrap over them is too
narrow for another process. Repeats of the same configuration, which verification needs anyway, show by how much.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autoplan.plan.records import Measurement
from autoplan.tuning.verification.statistics import Timed, student_t
from cost_models.config import TrainConfig


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the logarithm of a process's median micro-step, pooled over configurations.

    freedom  degrees of freedom: runs less configurations
    """

    deviation: float
    freedom: int

    def factor(self) -> float:
        """Another process's median lies within this factor of a stated one, 95 times in 100.

        Both medians vary, hence the square root of two: the prediction interval of one observation from another with a
        pooled deviation (Hahn & Meeker 1991, section 4.2).
        """
        return math.exp(student_t(self.freedom) * math.sqrt(2.0) * self.deviation)


def spread(runs: Iterable[Timed]) -> Spread | None:
    """Return the spread of repeated runs; None where no configuration ran twice."""
    logs: defaultdict[TrainConfig, list[float]] = defaultdict(list)
    for run in runs:
        logs[run.config].append(math.log(run.measurement.micro_step_seconds))
    repeated = [np.asarray(values) for values in logs.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if not freedom:
        return None
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in repeated)
    return Spread(math.sqrt(squares / freedom), freedom)


def restated(measurement: Measurement, between: Spread | None) -> Measurement:
    """Return the measurement with an interval for other processes, at least as wide as that of its own groups."""
    if between is None:
        return measurement
    factor = between.factor()
    median = measurement.micro_step_seconds
    return measurement.model_copy(
        update={
            "micro_step_seconds_low": min(measurement.micro_step_seconds_low, median / factor),
            "micro_step_seconds_high": max(measurement.micro_step_seconds_high, median * factor),
        }
    )
