"""Computes the speed-up of winner over baseline with its interval, from pairs of clean processes that alternate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.plan.records import Measurement
from cost_models.config import TrainConfig

CONFIDENCE = 0.95
CLEAR_RATIO = 1.5
"""Two pairs decide only if their speed-up is at least this, or its inverse. Two pairs of equal configurations are on
one side of no gain in one case of 20; where processes differ by up to 20%, few of these have such a ratio."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Speedup:
    """Baseline seconds a sample / winner seconds a sample: median over pairs, with a 95% interval."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def faster(self) -> bool:
        """Whether it was shown to be faster: the whole interval is above one."""
        return self.low > 1.0

    @property
    def decided(self) -> bool:
        """Whether it was shown to be faster or slower."""
        return self.low > 1.0 or self.high < 1.0

    @property
    def large(self) -> bool:
        """Whether the speed-up, or its inverse, is so large that brief runs show it."""
        return max(self.median, 1 / self.median) >= CLEAR_RATIO

    @property
    def clear(self) -> bool:
        """Whether it is decided and large, so that two pairs are enough."""
        return self.decided and self.large


@dataclass(frozen=True)
class Timed:
    """One process's measurement with the configuration that it ran."""

    config: TrainConfig
    measurement: Measurement

    def seconds_per_sample(self) -> npt.NDArray[np.float64]:
        """Return seconds per sample of each group of micro-steps, shape (groups,)."""
        seconds = self.measurement.group_seconds or [self.measurement.micro_step_seconds]
        return np.asarray(seconds, dtype=np.float64) / self.measurement.samples_per_micro_step


def speedup(pairs: Sequence[tuple[Timed, Timed]], *, seed: int = 0, resamples: int = RESAMPLES) -> Speedup:
    """Return the speed-up of (baseline, winner) pairs. ValueError without pairs.

    The interval is the wider of two:

    - A two-level bootstrap (Davison & Hinkley 1997, section 3.8; SciPy's has one level). It draws pairs with
      replacement, because processes differ by more than their groups do, and within a drawn pair its groups. The
      statistic is the median over pairs of the ratio of the medians of groups.
    - Student's t over the logarithms of the pairs' ratios. A few pairs have too few resamples: three pairs of equal
      speed are on one side of no gain by chance one time in four. Two pairs have one degree of freedom, so the
      processes of each configuration are taken alone (`_welch_interval`).
    """
    if not pairs:
        raise ValueError("a speed-up needs at least one pair of measurements")
    rates = [(base.seconds_per_sample(), winner.seconds_per_sample()) for base, winner in pairs]
    ratios = [float(np.median(base) / np.median(winner)) for base, winner in rates]
    generator = np.random.default_rng(seed)
    resampled = np.stack([_resampled_ratios(base, winner, resamples, generator) for base, winner in rates])
    drawn = generator.integers(len(pairs), size=(len(pairs), resamples))
    medians = np.median(np.take_along_axis(resampled, drawn, axis=0), axis=0)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    if len(pairs) == 2:
        medians_of = [[float(np.median(one)) for one in side] for side in zip(*rates, strict=True)]
        student_low, student_high = _welch_interval(*medians_of)
    else:
        student_low, student_high = _student_interval(ratios)
    return Speedup(float(np.median(ratios)), min(float(low), student_low), max(float(high), student_high), len(pairs))


def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t with so many degrees of freedom, of 95% unless said otherwise."""
    from scipy import stats  # here, because importing it takes longer than most commands

    return float(stats.t.ppf((1 + confidence) / 2, freedom))


def _student_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the geometric mean of ratios; of one ratio, the ratio itself."""
    logs = np.log(ratios)
    if len(logs) < 2:
        return ratios[0], ratios[0]
    half = student_t(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    centre = float(np.mean(logs))
    return math.exp(centre - half), math.exp(centre + half)


def _welch_interval(base: Sequence[float], winner: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the ratio of geometric means of two samples (Welch 1947, on logarithms)."""
    logs = np.log(base), np.log(winner)
    variances = [float(np.var(one, ddof=1)) / len(one) for one in logs]
    centre, whole = float(np.mean(logs[0]) - np.mean(logs[1])), sum(variances)
    if whole == 0.0:
        return math.exp(centre), math.exp(centre)
    parts = sum(one**2 / (len(side) - 1) for one, side in zip(variances, logs, strict=True))
    half = student_t(whole**2 / parts) * math.sqrt(whole)
    return math.exp(centre - half), math.exp(centre + half)


def _resampled_ratios(
    base: npt.NDArray[np.float64], winner: npt.NDArray[np.float64], resamples: int, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return ratios of medians over redrawn groups, shape (resamples,)."""

    def redrawn(rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.median(rates[generator.integers(len(rates), size=(resamples, len(rates)))], axis=1)

    return np.asarray(redrawn(base) / redrawn(winner))
