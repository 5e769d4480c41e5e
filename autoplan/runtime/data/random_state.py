"""Keeps the states of the global random number generators of Python, NumPy and PyTorch, and restores them."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RandomState:
    """The states of the global generators at one moment.

    torch  state of PyTorch's generator on the CPU; None if PyTorch is not imported
    """

    python: Any
    numpy: Any
    torch: Any

    @classmethod
    def now(cls) -> RandomState:
        """Return the present states."""
        torch = sys.modules.get("torch")
        return cls(
            random.getstate(),
            np.random.get_state(),  # noqa: NPY002 -- scripts draw from it
            None if torch is None else torch.get_rng_state(),
        )

    def restore(self) -> None:
        """Set the generators back to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002 -- scripts draw from it
        if self.torch is not None:
            sys.modules["torch"].set_rng_state(self.torch)

    def is_present(self) -> bool:
        """Return whether no generator has been advanced or seeded since."""
        now = RandomState.now()
        same = all(np.array_equal(one, other) for one, other in zip(self.numpy, now.numpy, strict=True))
        same_torch = self.torch is None or np.array_equal(self.torch.numpy(), now.torch.numpy())
        return same and same_torch and self.python == now.python


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the states of the global generators after this context."""
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore()
