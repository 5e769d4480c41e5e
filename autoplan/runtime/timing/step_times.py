"""A series of timed groups of calls: how long the next group is, which groups count, and when enough is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_WARM_UP_SPREAD = 0.10
_WARM_UP_GROUPS = 4
_LEAST_GROUPS = 3
_MOST_GROWTH = 16.0


class GroupSeries:
    """Groups grow to about `group_seconds` each, and are warm-up until two in a row agree within 10% (4 at most).

    After `groups` that count, or `max_seconds` once at least 3 do, enough is known.

    calls_a_group   calls in the next group
    warm_up, group_seconds   seconds a micro-step, one entry a group
    micro_steps     those in the groups that count
    """

    def __init__(
        self, *, groups: int, group_seconds: float, max_seconds: float, on_phase: Callable[[str], None] | None = None
    ) -> None:
        self._wanted, self.target_group_seconds, self._max_seconds = groups, group_seconds, max_seconds
        self._on_phase = on_phase
        self._began = time.perf_counter()
        self.calls_a_group = 1
        self.warm_up: list[float] = []
        self.group_seconds: list[float] = []
        self.micro_steps = 0

    def start(self) -> None:
        """Count `max_seconds` from now on."""
        self._began = time.perf_counter()

    def take(self, elapsed_seconds: float, micro_steps: int) -> None:
        """One more group, of `calls_a_group` calls, that ended by waiting for its results."""
        if elapsed_seconds < self.target_group_seconds / 2:
            self._grow(elapsed_seconds)
        else:
            self._record(elapsed_seconds / micro_steps, micro_steps)

    @property
    def enough(self) -> bool:
        """Whether nothing more needs to be timed."""
        late = time.perf_counter() - self._began > self._max_seconds
        return len(self.group_seconds) >= self._wanted or (late and len(self.group_seconds) >= _LEAST_GROUPS)

    def _grow(self, elapsed_seconds: float) -> None:
        factor = min(_MOST_GROWTH, self.target_group_seconds / max(elapsed_seconds, 1e-6))
        self.calls_a_group = max(self.calls_a_group + 1, math.ceil(self.calls_a_group * factor))

    def _record(self, seconds_a_micro_step: float, micro_steps: int) -> None:
        if not self.group_seconds and len(self.warm_up) < _WARM_UP_GROUPS:
            settled = bool(self.warm_up) and abs(seconds_a_micro_step / self.warm_up[-1] - 1) < _WARM_UP_SPREAD
            self.warm_up.append(seconds_a_micro_step)
            if self._on_phase is not None and (settled or len(self.warm_up) == _WARM_UP_GROUPS):
                self._on_phase("measure")
            if not settled:
                return
        self.group_seconds.append(seconds_a_micro_step)
        self.micro_steps += micro_steps
