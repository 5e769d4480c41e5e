"""Fits correction factors for the parts of an estimate to observed times and bytes of one machine.

An estimate is a sum of parts (arithmetic, memory traffic, the host's work; state and temporaries), and an observation
is one number. Factors are estimated in the logarithm, each from a prior around 1 that says how far the analytic tier
is usually off (Bayesian linear regression on a linearised model; Bishop 2006, section 3.3). One observation moves
the parts that can explain it, three can separate arithmetic from traffic, and other parts keep their prior.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log, sqrt

import numpy as np
import numpy.typing as npt

from cost_models.errors import ConfigError
from cost_models.memory import MemoryCost
from cost_models.time.cost import TimeCost, TimeParts

Floats = npt.NDArray[np.float64]

INTERVAL = 1.645
"""Standard deviations to either side of a 90% interval."""
TIME_PRIOR = (log(1.5), log(1.5), log(2.0))
"""Prior standard deviations of the logarithms of compute, bandwidth and dispatch. Published efficiencies of one chip
differ by up to 1.5 between shapes and sources (large products reach 0.5 to 0.9 of a peak); the host's speed by 2
between machines."""
PROBED_PRIOR = (log(1.15), log(1.15), log(2.0))
"""The same where a probe measured the rates of this machine: estimates are then 10% off on average
(`studies/time_vs_this_cpu`). The host's work depends on the input path, which no probe knows."""
MEMORY_PRIOR = log(1.25)
"""Prior of temporaries: the spread of compilers' figures around the rules of fusion."""
TIME_NOISE = 0.065
"""Noise of one measured micro-step: two processes of one program differ by 6% in the median, as two normal deviates of
0.065 do (133 configurations of `studies/time_vs_this_cpu`, measured in rounds)."""
PROBED_NOISE = 0.12
"""Noise of one measured micro-step around the corrected estimate: configurations also differ in ways that factors for
the parts cannot express. Estimates of one model are so far from their median (the same study)."""
MEMORY_NOISE = 0.02
"""Noise of one compiled step: its factor holds for other batches within about this."""

_TEMPORARIES = ("gradients", "weight_copies", "activations", "workspace")
_MOST_STEPS = 100
_SETTLED = 1e-10


@dataclass(frozen=True)
class TimePair:
    """The estimate of a configuration, and the observed seconds of a micro-step."""

    predicted: TimeCost
    observed_seconds: float


@dataclass(frozen=True)
class MemoryPair:
    """The estimate of a configuration, and the bytes that a device was observed to need."""

    predicted: MemoryCost
    observed_bytes: int


@dataclass(frozen=True)
class Factor:
    """Needed over estimated amount. `low`, `high`: ends of its 90% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """Factors for seconds and bytes: above 1, the machine needs more than was estimated.

    compute    seconds of kernels bound by arithmetic
    bandwidth  seconds of kernels bound by memory traffic
    dispatch   seconds of launches and of the host's work
    memory     bytes of temporaries; state and inputs are known exactly
    times, memories   how many pairs each came from
    """

    compute: Factor
    bandwidth: Factor
    dispatch: Factor
    memory: Factor
    times: int
    memories: int

    def time(self, cost: TimeCost) -> TimeCost:
        """Return the estimate with its parts corrected; communication stays as estimated."""
        factors = TimeParts(self.compute.value, self.bandwidth.value, 1.0, self.dispatch.value)
        return cost.with_parts(cost.parts * factors)

    def bytes(self, cost: MemoryCost) -> MemoryCost:
        """Return the estimate with its temporaries corrected; where memory was observed, so is the interval."""
        before = _temporaries(cost)
        corrected = {name: round(getattr(cost, name) * self.memory.value) for name in _TEMPORARIES}
        now = sum(corrected.values())
        total = cost.total - before + now
        if self.memories:
            low, high = (round(before * end) for end in (self.memory.low, self.memory.high))
        else:
            low, high = now - (cost.total - cost.total_low), now + (cost.total_high - cost.total)
        rest = total - now
        return replace(cost, **corrected, total=total, total_low=rest + low, total_high=rest + high)


def calibrate(
    times: Iterable[TimePair] = (), memories: Iterable[MemoryPair] = (), *, probed: bool = False
) -> Calibration:
    """Return the factors from pairs of estimates and observations of one machine.

    probed  whether the estimates' rates were measured on this machine: then they are trusted more, and one odd
            observation moves them less

    Without pairs every factor is 1, as uncertain as the analytic tier is. ConfigError for an observation that is no
    positive number.
    """
    times, memories = list(times), list(memories)
    of_time = _time_factors(times, *((PROBED_PRIOR, PROBED_NOISE) if probed else (TIME_PRIOR, TIME_NOISE)))
    return Calibration(*of_time, memory=_memory_factor(memories), times=len(times), memories=len(memories))


def _time_factors(pairs: Sequence[TimePair], prior: Sequence[float], noise: float) -> tuple[Factor, Factor, Factor]:
    costs = [pair.predicted for pair in pairs]
    parts = [[cost.compute_seconds, cost.memory_seconds, cost.overhead_seconds] for cost in costs]
    rest = [cost.communication_seconds for cost in costs]
    observed = [_checked(pair.observed_seconds, "seconds") for pair in pairs]
    compute, bandwidth, dispatch = _factors(parts, rest, observed, prior, noise)
    return compute, bandwidth, dispatch


def _memory_factor(pairs: Sequence[MemoryPair]) -> Factor:
    """The interval is for another batch, so it is wider than the factor's own by the noise of one step."""
    parts = [[float(_temporaries(pair.predicted))] for pair in pairs]
    rest = [float(pair.predicted.total - _temporaries(pair.predicted)) for pair in pairs]
    observed = [_checked(pair.observed_bytes, "bytes") for pair in pairs]
    (found,) = _factors(parts, rest, observed, (MEMORY_PRIOR,), MEMORY_NOISE)
    deviation = log(found.high / found.value) / INTERVAL
    return _factor(log(found.value), sqrt(deviation**2 + MEMORY_NOISE**2))


def _temporaries(cost: MemoryCost) -> int:
    return sum(getattr(cost, name) for name in _TEMPORARIES)


def _checked(observed: float, unit: str) -> float:
    if not (isfinite(observed) and observed > 0):
        raise ConfigError(f"{observed!r} {unit} were observed; expected a positive number")
    return float(observed)


def _factors(
    parts: Sequence[Sequence[float]],
    rest: Sequence[float],
    observed: Sequence[float],
    prior: Sequence[float],
    noise: float,
) -> list[Factor]:
    """Factors f of `observed = parts @ f + rest`: the most probable logarithms, by Gauss and Newton's method.

    parts   (observations, factors)
    prior   standard deviation of each factor's logarithm
    noise   standard deviation of an observation's logarithm; larger where the observations contradict one another
    """
    amounts = np.asarray(parts, np.float64).reshape(-1, len(prior))
    fixed, seen = np.asarray(rest, np.float64), np.log(np.asarray(observed, np.float64))
    narrow = np.diag(1 / np.square(prior))
    logs = np.zeros(len(prior))
    for _ in range(_MOST_STEPS):
        slopes, misses = _linear(amounts, fixed, seen, logs)
        change = np.linalg.solve(slopes.T @ slopes / noise**2 + narrow, slopes.T @ misses / noise**2 - narrow @ logs)
        logs = logs + np.clip(change, -1.0, 1.0)
        if np.abs(change).max() < _SETTLED:
            break
    slopes, misses = _linear(amounts, fixed, seen, logs)
    spare = len(seen) - len(prior)
    spread = max(noise**2, float(misses @ misses) / spare) if spare > 0 else noise**2
    covariance = np.linalg.inv(slopes.T @ slopes / spread + narrow)
    return [_factor(float(at), sqrt(float(own))) for at, own in zip(logs, np.diag(covariance), strict=True)]


def _linear(amounts: Floats, fixed: Floats, seen: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Slopes of the logarithm of each estimate by that of each factor, and the difference to each observation."""
    scaled = amounts * np.exp(logs)
    total = scaled.sum(axis=1) + fixed
    return scaled / total[:, None], seen - np.log(total)


def _factor(at: float, deviation: float) -> Factor:
    return Factor(exp(at), exp(at - INTERVAL * deviation), exp(at + INTERVAL * deviation))
