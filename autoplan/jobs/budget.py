"""The time budget of one tuning."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The budget in seconds from `started_at` on. None: no end."""

    budget_seconds: float | None
    started_at: float

    @classmethod
    def start(cls, budget_seconds: float | None) -> Clock:
        """The budget from now on."""
        return cls(budget_seconds, time.monotonic())

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def left(self) -> float | None:
        """Seconds left, never below zero."""
        return None if self.budget_seconds is None else max(0.0, self.budget_seconds - self.elapsed())

    def allows(self, seconds: float) -> bool:
        """Whether so much time is left."""
        left = self.left()
        return left is None or left >= seconds
