"""Implements `autoplan.measure`: measures the time and memory of one step of a custom training loop."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import keras

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.runtime import backends
from autoplan.runtime.backends import Backend
from autoplan.runtime.data import nested_arrays
from autoplan.runtime.timing.timed_groups import TimedGroups, median_interval


@dataclass(frozen=True)
class StepMeasurement:
    """The measured time and memory of a training step in this process. None means "not known".

    `str()` gives a summary in one line.

    micro_step_seconds    median over groups of calls, each of which waits for the device; `_low` and `_high` are its
                          95% confidence interval by a moving-block bootstrap
    first_call_seconds    time of the first call, which includes compilation and other one-time work
    group_seconds         seconds per call of each group; the groups contain `micro_steps` calls
    peak_bytes            peak memory of a device so far; of this process if the device does not report it
    """

    micro_step_seconds: float
    micro_step_seconds_low: float
    micro_step_seconds_high: float
    samples_per_second: float | None
    first_call_seconds: float
    groups: int
    micro_steps: int
    group_seconds: tuple[float, ...]
    peak_bytes: int
    peak_bytes_source: Literal["device", "resident"]
    backend: str

    def __str__(self) -> str:
        interval = formatting.seconds_range(self.micro_step_seconds_low, self.micro_step_seconds_high)
        samples = "" if self.samples_per_second is None else f", {formatting.rate(self.samples_per_second)} samples/s"
        return (
            f"{formatting.seconds(self.micro_step_seconds)} per micro-step (95% confidence interval {interval})"
            f"{samples}; first call {formatting.seconds(self.first_call_seconds)}; measured on {self.backend} in "
            f"{formatting.counted(self.groups, 'group')} with {formatting.counted(self.micro_steps, 'micro-step')}"
        )


def measure_step(
    step: Callable[..., Any],
    batch: tuple[Any, ...],
    *,
    samples: int | None,
    groups: int,
    group_seconds: float,
    max_seconds: float,
) -> StepMeasurement:
    """Measure a training step; `autoplan.measure` describes the arguments and their defaults."""
    if not callable(step):
        raise ConfigError(
            f"autoplan.measure got a {type(step).__name__} as the step; expected a function that trains on one batch: "
            "autoplan.measure(step, batch)"
        )
    if groups < 1 or group_seconds <= 0 or max_seconds <= 0:
        raise ConfigError(
            f"autoplan.measure got groups={groups}, group_seconds={group_seconds}, max_seconds={max_seconds}; expected "
            "at least one group and positive times"
        )
    backend = backends.get(keras.backend.backend())
    first = _timed(step, batch, 1, backend)
    series = TimedGroups(groups=groups, group_seconds=group_seconds, max_seconds=max_seconds)
    while not series.is_complete:
        calls = series.calls_per_group
        series.add(_timed(step, batch, calls, backend), calls)
    rows = samples or nested_arrays.row_count(batch)
    return _measurement(series, first, rows or None, backend)


def _timed(step: Callable[..., Any], batch: tuple[Any, ...], calls: int, backend: Backend) -> float:
    """Return the seconds of `calls` calls, including everything that they have started."""
    started = time.perf_counter()
    outputs = None
    for _ in range(calls):
        outputs = step(*batch)
    backend.synchronize(outputs)
    backend.synchronize(None)  # a step may return nothing, or less than it computes
    return time.perf_counter() - started


def _measurement(series: TimedGroups, first: float, rows: int | None, backend: Backend) -> StepMeasurement:
    median, low, high = median_interval(series.group_seconds)
    on_device = backend.peak_bytes()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return StepMeasurement(
        micro_step_seconds=median,
        micro_step_seconds_low=low,
        micro_step_seconds_high=high,
        samples_per_second=rows / median if rows else None,
        first_call_seconds=first,
        groups=len(series.group_seconds),
        micro_steps=series.micro_steps,
        group_seconds=tuple(series.group_seconds),
        peak_bytes=resident if on_device is None else on_device,
        peak_bytes_source="resident" if on_device is None else "device",
        backend=backend.name,
    )
