"""Measures whether the memory of this process grows with every micro-step, as with a callback that keeps arrays."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()
_INTERVAL_SECONDS = 0.005
_LEAST_POINTS = 12
_MOST_POINTS = 256
_NOISE_BYTES = 4 * 2**20
_NOISE_DEVIATIONS = 6.0
_STEADY_SHARE = 0.5


class MemoryGrowth:
    """A series of (micro-step, bytes), and the growth that it shows.

    The bytes are those of this process without pages of files, which a data set in a mapped file makes resident.
    """

    def __init__(self) -> None:
        self._points: list[tuple[int, int]] = []
        self._next_at = 0.0

    def sample(self, micro_step: int) -> None:
        """Add a point, unless the last point is only a few milliseconds old."""
        now = time.perf_counter()
        if now >= self._next_at:
            self._next_at = now + _INTERVAL_SECONDS
            bytes_now = private_bytes()
            if bytes_now is not None:
                self.add(micro_step, bytes_now)

    def add(self, micro_step: int, bytes_now: int) -> None:
        """Add a point."""
        self._points.append((micro_step, bytes_now))
        if len(self._points) > _MOST_POINTS:
            del self._points[1::2]

    @property
    def micro_steps(self) -> int:
        """The micro-steps between the first point and the last."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0

    def bytes_after(self, micro_steps: int) -> int | None:
        """Return the bytes after so many micro-steps if the growth goes on; None if there is none."""
        slope = self.bytes_per_micro_step()
        if slope is None:
            return None
        last, bytes_then = self._points[-1]
        return round(bytes_then + slope * max(0, micro_steps - last))

    def bytes_per_micro_step(self) -> float | None:
        """Return the growth per micro-step; None if memory does not grow steadily, or too few points are known.

        The slope is the median of the slopes between all points (Theil-Sen). It has to exceed the scatter of the points
        around it, and both halves of the series have to grow at half this rate at least: a pool that fills up stops.
        """
        if len(self._points) < _LEAST_POINTS:
            return None
        steps, sizes = np.asarray(self._points, dtype="float64").T
        slope = _median_slope(steps, sizes)
        if slope is None or slope <= 0:
            return None
        rest = sizes - slope * steps
        scatter = float(np.median(np.abs(rest - np.median(rest))))
        if slope * (steps[-1] - steps[0]) < max(_NOISE_BYTES, _NOISE_DEVIATIONS * scatter):
            return None
        middle = len(steps) // 2
        halves = (_median_slope(steps[:middle], sizes[:middle]), _median_slope(steps[middle:], sizes[middle:]))
        return slope if all(one is not None and one >= _STEADY_SHARE * slope for one in halves) else None


def private_bytes() -> int | None:
    """Return the resident bytes of this process without those of files and shared memory; None if not known."""
    try:
        _, resident, shared, *_ = _STATM.read_bytes().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _median_slope(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the median of the slopes between all pairs of points (Theil 1950, Sen 1968)."""
    first, second = np.triu_indices(len(x), k=1)
    apart = x[second] - x[first]
    slopes = (y[second] - y[first])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else None
