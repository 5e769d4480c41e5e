"""Tracks the time budget of one tuning: seconds elapsed, seconds left, and whether a step still fits."""

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
        """Start the budget now."""
        return cls(budget_seconds, time.monotonic())

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started_at

    def left(self) -> float | None:
        """Return the seconds left, at least zero; None without a budget."""
        return None if self.budget_seconds is None else max(0.0, self.budget_seconds - self.elapsed())

    def allows(self, seconds: float) -> bool:
        """Return whether so many seconds are left."""
        left = self.left()
        return left is None or left >= seconds
