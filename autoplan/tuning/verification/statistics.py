"""Computes the speed-up of winner over baseline with its interval, and compares the losses of both.

Speed comes from pairs of clean processes, baseline and winner alternating. Numerics come from the first losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autoplan.plan.records import Measurement
from cost_models.config import Precision, TrainConfig

CONFIDENCE = 0.95
RESAMPLES = 2000
EXACT_TOLERANCE = 1e-5
SEEDS = 5
UPDATES = 20
MOVED_TOLERANCE = 1e-3
MOVED_UPDATES = 50
"""Another backend sums in another order in every kernel, and updates carry that on: a longer look, a wider bound."""

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

Verdict = Literal["exact", "within_seed_band", "outside", "not_compared"]


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


@dataclass(frozen=True)
class Numerics:
    """Whether the winner's losses are the baseline's."""

    verdict: Verdict
    detail: str


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
      speed are on one side of no gain by chance one time in four.
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
    student_low, student_high = _student_interval(ratios)
    return Speedup(float(np.median(ratios)), min(float(low), student_low), max(float(high), student_high), len(pairs))


def student_t(freedom: int) -> float:
    """Return the two-sided 95% quantile of Student's t with so many degrees of freedom."""
    from scipy import stats  # here, because importing it takes longer than most commands

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


def _student_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the geometric mean of ratios; of one ratio, the ratio itself."""
    logs = np.log(ratios)
    if len(logs) < 2:
        return ratios[0], ratios[0]
    half = student_t(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    centre = float(np.mean(logs))
    return math.exp(centre - half), math.exp(centre + half)


def _resampled_ratios(
    base: npt.NDArray[np.float64], winner: npt.NDArray[np.float64], resamples: int, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return ratios of medians over redrawn groups, shape (resamples,)."""

    def redrawn(rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.median(rates[generator.integers(len(rates), size=(resamples, len(rates)))], axis=1)

    return np.asarray(redrawn(base) / redrawn(winner))


def exactness_expected(baseline: TrainConfig, winner: TrainConfig, *, random_layers: bool, batch_norm: bool) -> bool:
    """Return whether losses must agree within rounding: both in float32, no dropout, no BatchNorm."""
    float32 = {baseline.precision, winner.precision} == {Precision.FLOAT32}
    return float32 and not random_layers and not batch_norm


def compare_losses(
    baseline_seeds: Sequence[Sequence[float]],
    winner: Sequence[float],
    *,
    exact: bool,
    compute_dtype: str = "float32",
    other_statistics: bool = False,
    tolerance: float = EXACT_TOLERANCE,
) -> Numerics:
    """Judge the winner's losses, one an update, against the baseline's. The first baseline run has the winner's seed.

    exact    every update within a relative `tolerance` of the same seed's baseline
    band     the mean loss over the later half of the updates lies in the 95% prediction interval that the baseline's
             seeds span, mean +- t * s * sqrt(1 + 1/n), or nearer to their mean than rounding explains: the square root
             of the compute dtype's epsilon, since updates carry rounding on
    other_statistics   BatchNorm normalises over another number of samples, so losses differ by design: above the band
             is worse and `outside`; below it is no fault, and `not_compared`
    """
    same_seed = list(baseline_seeds[0]) if baseline_seeds else []
    if not winner or len(same_seed) != len(winner):
        return Numerics("not_compared", f"the baseline has {len(same_seed)} losses and the plan has {len(winner)}")
    if not all(map(math.isfinite, winner)):
        return Numerics("outside", "a loss of the plan is not a finite number")
    if exact:
        return _compare_exactly(same_seed, winner, tolerance)
    if len(baseline_seeds) != SEEDS:
        return Numerics("not_compared", f"only {len(baseline_seeds)} of the {SEEDS} baseline seeds gave losses")
    return _compare_with_band(baseline_seeds, winner, compute_dtype, other_statistics=other_statistics)


def _compare_exactly(baseline: Sequence[float], winner: Sequence[float], tolerance: float) -> Numerics:
    worst = max(abs(ours - theirs) / max(abs(theirs), 1e-12) for ours, theirs in zip(winner, baseline, strict=True))
    detail = f"largest relative difference of a loss over {len(winner)} updates: {worst:.1e}, allowed {tolerance:.0e}"
    return Numerics("exact" if worst <= tolerance else "outside", detail)


def _compare_with_band(
    seeds: Sequence[Sequence[float]], winner: Sequence[float], compute_dtype: str, *, other_statistics: bool
) -> Numerics:
    finals = [_later_mean(losses) for losses in seeds]
    centre, spread = float(np.mean(finals)), float(np.std(finals, ddof=1))
    rounding = math.sqrt(_EPSILON[compute_dtype]) * abs(centre)
    half = max(student_t(len(finals) - 1) * spread * math.sqrt(1 + 1 / len(finals)), rounding)
    ours = _later_mean(winner)
    detail = (
        f"mean loss of the later updates {ours:.6g}; 95% interval over {len(finals)} seeds of the baseline "
        f"{centre - half:.6g} to {centre + half:.6g}"
    )
    if abs(ours - centre) <= half:
        return Numerics("within_seed_band", detail)
    if other_statistics and ours < centre:
        return Numerics(
            "not_compared", f"BatchNormalization sees other micro-batches, and the loss is lower ({detail})"
        )
    return Numerics("outside", detail)


def _later_mean(losses: Sequence[float]) -> float:
    return float(np.mean(losses[len(losses) // 2 :]))
