"""A pole on a cart with the interface of gym's `CartPole-v0`: four numbers, two actions, and random motion."""

from __future__ import annotations

from typing import Any

import numpy as np

EPISODE = 20


class Pole:
    """A pole that falls after `EPISODE` actions, so that no policy solves it."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._actions = 0

    def seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> Any:
        self._actions = 0
        return self._state()

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        """Return (state, reward, whether the pole has fallen, {})."""
        self._actions += 1
        return self._state(), 1.0, self._actions >= EPISODE, {}

    def render(self, *_: Any, **__: Any) -> None:
        """Display nothing."""

    def _state(self) -> Any:
        return self._rng.normal(0.0, 0.05, 4).astype("float32")
