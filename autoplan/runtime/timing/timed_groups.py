"""Times calls in groups: chooses group sizes, discards warm-up, and stops when the median's interval is narrow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

_WARM_UP_SPREAD = 0.10
_WARM_UP_GROUPS = 4
_LEAST_GROUPS = 3
_MOST_GROWTH = 16.0
_LONGEST_GROUP = 2.0
"""A group of several calls ends after this many times its target: the input may stall, or another process disturb."""
_SLOW_RESTARTS = 5.0
"""A fit is not run again after this many times the time that all groups together are meant to take."""


class TimedGroups:
    """A series of timed groups. Groups grow until each takes about `group_seconds`.

    The first groups are warm-up, until two in a row agree within 10% (4 groups at most). The series is complete after
    `groups` groups that count, or after `max_seconds` if at least 3 groups count.

    calls_per_group            calls in the next group
    warm_up, group_seconds   seconds per micro-step of each warm-up group, and of each group that counts
    micro_steps              number of micro-steps in the groups that count
    short_group              seconds per micro-step, and micro-steps, of the last group that was too short to count
    """

    def __init__(
        self, *, groups: int, group_seconds: float, max_seconds: float, on_phase: Callable[[str], None] | None = None
    ) -> None:
        self._wanted, self.target_group_seconds, self._max_seconds = groups, group_seconds, max_seconds
        self._on_phase = on_phase
        self._began = time.perf_counter()
        self.calls_per_group = 1
        self.warm_up: list[float] = []
        self.group_seconds: list[float] = []
        self.micro_steps = 0
        self.short_group: tuple[float, int] | None = None

    def start(self) -> None:
        """Start the clock of `max_seconds`."""
        self._began = time.perf_counter()

    def elapsed_seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._began

    def is_overdue(self, elapsed_seconds: float) -> bool:
        """Return whether the present group has taken too long, and ends with the calls that it has."""
        return elapsed_seconds > _LONGEST_GROUP * self.target_group_seconds

    def add(self, elapsed_seconds: float, micro_steps: int, calls: int | None = None) -> None:
        """Add a group that ended by waiting for its results.

        calls  its calls, if it ended before it had `calls_per_group` of them
        """
        calls = calls or self.calls_per_group
        if calls >= self.calls_per_group and elapsed_seconds < self.target_group_seconds / 2:
            self.short_group = (elapsed_seconds / micro_steps, micro_steps)
            self._grow(elapsed_seconds)
            return
        if self.is_overdue(elapsed_seconds):
            self.calls_per_group = max(1, math.floor(calls * self.target_group_seconds / elapsed_seconds))
        self._record(elapsed_seconds / micro_steps, micro_steps)

    @property
    def is_complete(self) -> bool:
        """Whether enough groups have been timed."""
        late = self.elapsed_seconds() > self._max_seconds
        return len(self.group_seconds) >= self._wanted or (late and len(self.group_seconds) >= _LEAST_GROUPS)

    @property
    def is_worth_another_fit(self) -> bool:
        """Whether to run a fit again that has ended: not for more groups if most of the time was spent between fits."""
        usual = _SLOW_RESTARTS * self._wanted * self.target_group_seconds
        few = len(self.group_seconds) < _LEAST_GROUPS
        return not self.is_complete and self.elapsed_seconds() < (self._max_seconds if few else usual)

    def _grow(self, elapsed_seconds: float) -> None:
        factor = min(_MOST_GROWTH, self.target_group_seconds / max(elapsed_seconds, 1e-6))
        self.calls_per_group = max(self.calls_per_group + 1, math.ceil(self.calls_per_group * factor))

    def _record(self, seconds_per_micro_step: float, micro_steps: int) -> None:
        if not self.group_seconds and len(self.warm_up) < _WARM_UP_GROUPS:
            settled = bool(self.warm_up) and abs(seconds_per_micro_step / self.warm_up[-1] - 1) < _WARM_UP_SPREAD
            self.warm_up.append(seconds_per_micro_step)
            if self._on_phase is not None and (settled or len(self.warm_up) == _WARM_UP_GROUPS):
                self._on_phase("measure")
            if not settled:
                return
        self.group_seconds.append(seconds_per_micro_step)
        self.micro_steps += micro_steps


def median_interval(values: list[float], *, seed: int = 0, draws: int = 2000) -> tuple[float, float, float]:
    """Return the median of consecutive group times and its 95% confidence interval by a moving-block bootstrap.

    Blocks of about the cube root of the length (Künsch 1989) preserve the correlation of neighbouring groups, such as
    a slowdown by another process that lasted for several of them. The unit is that of `values`. A single value gives
    three equal numbers.
    """
    array = np.asarray(values, dtype="float64")
    median = float(np.median(array))
    if len(array) < 2:
        return median, median, median
    block = max(1, round(len(array) ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(
        0, len(array) - block + 1, size=(draws, math.ceil(len(array) / block))
    )
    picked = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, : len(array)]
    low, high = np.quantile(np.median(array[picked], axis=1), [0.025, 0.975])
    return median, float(low), float(high)
