"""Runs updates of a fit's model over given rows, and compares their losses, gradients and variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Mapping[str, Any]
"""Arrays by the path of a variable."""
FLOOR = 1e-2
"""A gradient that is this share of the largest one, or less, is compared as if it were this share: rounding of larger
numbers may be all that it is."""
TOLERANCES: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative difference that rounding explains, by the data type in which a model computes.

A sum over rows is rounded differently in other parts. On the probe's models the differences were below 1e-5 in
float32, and a loss that depends on other rows differed by more than 1e-3.
"""
_SMALLEST_LOSS = 1e-7


@dataclass(frozen=True)
class Update:
    """The results of one update.

    losses     one for each micro-step; None if the model reports none
    gradients  one for each micro-step
    before     variables before the update
    after      variables after it: those that no gradient changes, and those that something else has changed
    logs       what the last micro-step reported
    """

    losses: Sequence[float | None]
    gradients: Sequence[Values]
    before: Values
    after: Values
    logs: Sequence[Mapping[str, float]]

    @property
    def loss(self) -> float | None:
        known = [loss for loss in self.losses if loss is not None]
        return float(np.mean(known)) if len(known) == len(self.losses) else None

    def gradient(self, path: str) -> Any:
        """Return the mean over the micro-steps, as gradient accumulation has it."""
        return sum(one[path].astype("float64") for one in self.gradients) / len(self.gradients)

    @property
    def finite(self) -> bool:
        """Whether the loss and all gradients are finite."""
        losses = [loss for loss in self.losses if loss is not None]
        values = [value for one in self.gradients for value in one.values()]
        return bool(np.isfinite(losses).all() and all(np.isfinite(value).all() for value in values))

    @property
    def has_gradient(self) -> bool:
        return any(np.any(value) for one in self.gradients for value in one.values())


@dataclass(frozen=True)
class UpdateDifference:
    """A difference between two updates that rounding does not explain.

    kind      loss | gradient | variable
    name      the key of the variable; "loss"
    relative  size of the difference over the size of what was compared
    words     how a variable moved
    """

    kind: str
    name: str
    relative: float
    words: str = ""

    @property
    def path(self) -> str:
        """The path of the variable, which several variables may have."""
        return self.name.rpartition("#")[0]


def differences(whole: Update, other: Update, tolerance: float) -> tuple[list[UpdateDifference], float]:
    """Return what differs between an update in one micro-step and the same update run otherwise.

    Also returns the largest relative difference of a loss or a gradient, which may be within the tolerance.
    """
    if whole.finite and not other.finite:
        return [UpdateDifference("loss", "loss", float("inf"))], float("inf")
    compared = [*_loss_difference(whole, other), *_gradient_differences(whole, other)]
    most = max((one.relative for one in compared), default=0.0)
    found = [one for one in compared if one.relative > tolerance]
    return [*_variable_differences(whole, other, tolerance), *found], most


def _loss_difference(whole: Update, other: Update) -> Iterator[UpdateDifference]:
    own, parts = whole.loss, other.loss
    if own is None or parts is None:
        return
    size = max(abs(own), *(abs(loss) for loss in other.losses if loss is not None))
    apart = abs(own - parts)
    yield UpdateDifference("loss", "loss", 0.0 if apart <= _SMALLEST_LOSS else apart / size)


def _gradient_differences(whole: Update, other: Update) -> Iterator[UpdateDifference]:
    sizes = {path: _gradient_size(path, whole, other) for path in whole.gradients[0]}
    largest = max(sizes.values(), default=0.0)
    for path, size in sizes.items():
        against = max(size, FLOOR * largest)
        apart = _norm(whole.gradient(path) - other.gradient(path))
        yield UpdateDifference("gradient", path, apart / against if against else 0.0)


def _gradient_size(path: str, *updates: Update) -> float:
    return max(_norm(one[path]) for update in updates for one in update.gradients)


def _variable_differences(whole: Update, other: Update, tolerance: float) -> Iterator[UpdateDifference]:
    for path, before in whole.before.items():
        start = before.astype("float64")
        by_whole, by_other = whole.after[path].astype("float64") - start, other.after[path].astype("float64") - start
        moved = max(_norm(by_whole), _norm(by_other))
        apart = _norm(by_whole - by_other)
        rounding = 0.0 if before.dtype.kind in "biu" else tolerance * moved + 1e-6 * _norm(start)
        if apart > rounding:
            yield UpdateDifference("variable", path, apart / moved, _moves(by_whole, by_other))


def _moves(by_whole: Any, by_other: Any) -> str:
    if by_whole.size == 1:
        return f"by {_number(by_whole)} in one micro-step and by {_number(by_other)} in two of half the size"
    sizes = _norm(by_whole), _norm(by_other)
    return f"by {sizes[0]:.3g} in one micro-step and by {sizes[1]:.3g} in two of half the size (Euclidean norms)"


def _number(value: Any) -> str:
    return f"{float(value.reshape(-1)[0]):.6g}"


def _norm(value: Any) -> float:
    return float(np.linalg.norm(np.asarray(value, dtype="float64")))
