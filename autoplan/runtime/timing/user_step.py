"""Measures one training step of a loop that its user wrote: `autoplan.measure`."""

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
from autoplan.runtime.data import sample
from autoplan.runtime.timing.fit_timing import median_interval
from autoplan.runtime.timing.step_times import GroupSeries


@dataclass(frozen=True)
class StepMeasurement:
    """What calling a training step takes, measured in this process. `None` is "not known"; `str()` tells it in a line.

    micro_step_seconds    median over groups of calls, each ended by waiting for the device; `_low` and `_high` are the
                          95% interval of that median by a moving-block bootstrap
    first_call_seconds    the first call apart: compilation, and whatever else happens once
    group_seconds         seconds a call, one entry a group; `micro_steps` calls are in them
    peak_bytes            the most that a device held, or where no device tells, that this process held, so far
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
            f"{formatting.seconds(self.micro_step_seconds)} a micro-step (95% interval {interval}){samples}; "
            "first call "
            f"{formatting.seconds(self.first_call_seconds)}; measured on {self.backend} in "
            f"{formatting.counted(self.groups, 'group')}, {formatting.counted(self.micro_steps, 'micro-step')} in all"
        )


def measure(
    step: Callable[..., Any],
    *batch: Any,
    samples: int | None = None,
    groups: int = 8,
    group_seconds: float = 0.5,
    max_seconds: float = 60.0,
) -> StepMeasurement:
    """See `autoplan.measure`."""
    if not callable(step):
        raise ConfigError(
            f"autoplan.measure got a {type(step).__name__} as the step; expected a function that trains on one batch "
            "when it is called: autoplan.measure(step, batch)"
        )
    if groups < 1 or group_seconds <= 0 or max_seconds <= 0:
        raise ConfigError(
            f"autoplan.measure got groups={groups}, group_seconds={group_seconds}, max_seconds={max_seconds}; expected "
            "at least one group and times above zero"
        )
    backend = backends.get(keras.backend.backend())
    first = _timed(step, batch, 1, backend)
    series = GroupSeries(groups=groups, group_seconds=group_seconds, max_seconds=max_seconds)
    while not series.enough:
        calls = series.calls_a_group
        series.take(_timed(step, batch, calls, backend), calls)
    rows = samples or sample.rows(batch)
    return _measurement(series, first, rows or None, backend)


def _timed(step: Callable[..., Any], batch: tuple[Any, ...], calls: int, backend: Backend) -> float:
    """Seconds of so many calls and of everything that they have started."""
    started = time.perf_counter()
    outputs = None
    for _ in range(calls):
        outputs = step(*batch)
    backend.synchronize(outputs)
    backend.synchronize(None)  # a step may return nothing, or less than it computes
    return time.perf_counter() - started


def _measurement(series: GroupSeries, first: float, rows: int | None, backend: Backend) -> StepMeasurement:
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
