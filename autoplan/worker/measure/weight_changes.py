"""Records how the variables of a model change over a few updates, and compares two such records variable by variable.

Two processes exchange a record as a file of arrays, because a planner that held the weights would need their memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from autoplan.jobs.messages import ChangeComparison, VariableDifference, VariableKind

Array = npt.NDArray[Any]
NEGLIGIBLE_CHANGE = 1e-3
"""A variable that changes by less than this share of the model's mean change is compared with that share: its own
change may be nothing but rounding, as that of the bias before a normalization."""
LARGEST_DIFFERENCE = 1e9
"""Stands for an infinite difference, which JSON cannot hold."""


@dataclass(frozen=True)
class VariableChange:
    """The change of one variable: its path, the kind of its state, and the array of differences."""

    path: str
    kind: VariableKind
    change: Array


def kinds_of_state(model: Any) -> dict[int, VariableKind]:
    """Return the kind of each variable that training does not differentiate, by `id`; metrics are left out."""
    layers = list(model._flatten_layers())
    metrics = {id(variable) for variable in model.metrics_variables}
    metrics |= {id(one) for layer in layers for metric in getattr(layer, "_metrics", []) for one in metric.variables}
    seeds = {id(generator.state) for layer in layers for generator in layer._seed_generators}
    normalizations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    statistics = {id(one) for layer in normalizations for one in layer.non_trainable_variables}

    def kind(variable: Any) -> VariableKind:
        if id(variable) in seeds:
            return "seed"
        return "batch_statistics" if id(variable) in statistics else "state"

    trained = {id(variable) for variable in model.trainable_variables}
    return {id(one): kind(one) for one in model.variables if id(one) not in metrics | trained}


@dataclass(frozen=True)
class Values:
    """The values of a model's variables at one moment, in the order of `model.variables`, metrics left out."""

    paths: tuple[str, ...]
    kinds: tuple[VariableKind, ...]
    arrays: tuple[Array, ...]

    @classmethod
    def of(cls, model: Any) -> Values:
        """Copy the values of all variables except metrics."""
        known = _variables(model)
        paths, kinds = tuple(variable.path for variable, _ in known), tuple(kind for _, kind in known)
        return cls(paths, kinds, tuple(_array(variable) for variable, _ in known))

    def changes(self, model: Any) -> list[VariableChange]:
        """Return the changes from these values to the present ones; empty where the model had no variables before.

        The changes take the place of these values, so that only one copy of the weights is held.
        """
        now = _variables(model)
        if self.paths != tuple(variable.path for variable, _ in now):
            return []
        for before, (variable, _) in zip(self.arrays, now, strict=True):
            np.subtract(_array(variable), before, out=before)
        known = zip(self.paths, self.kinds, self.arrays, strict=True)
        return [VariableChange(path, kind, change) for path, kind, change in known]


def _variables(model: Any) -> list[tuple[Any, VariableKind]]:
    """Return the variables of a model with their kinds, without metrics."""
    state, trained = kinds_of_state(model), {id(variable) for variable in model.trainable_variables}
    return [
        (variable, "weight" if id(variable) in trained else state[id(variable)])
        for variable in model.variables
        if id(variable) in trained or id(variable) in state
    ]


def _array(variable: Any) -> Array:
    """Return a copy as float64 for whole numbers, which have no rounding, and as float32 otherwise."""
    value = np.asarray(keras.ops.convert_to_numpy(variable.value))
    return np.array(value, dtype="float64" if value.dtype.kind in "iub" else "float32")


def weight_norm(changes: Iterable[VariableChange]) -> float:
    """Return the Euclidean norm of the change of all trainable weights."""
    return math.sqrt(sum(_norm(one.change) ** 2 for one in changes if one.kind == "weight"))


def state_norms(changes: Iterable[VariableChange]) -> dict[str, float]:
    """Return the norms of the changes of state that is neither a weight nor a seed, by path."""
    return {one.path: _norm(one.change) for one in changes if one.kind in ("state", "batch_statistics")}


def moved_seeds(changes: Iterable[VariableChange]) -> list[str]:
    """Return the paths of seed states that moved: random numbers were drawn from them."""
    return [one.path for one in changes if one.kind == "seed" and one.change.any()]


def save(path: Path, changes: Iterable[VariableChange]) -> None:
    """Write changes to a file for `compare`."""
    with path.open("wb") as file:
        np.savez(file, *(one.change for one in changes))


def compare(changes: list[VariableChange], path: Path) -> ChangeComparison | None:
    """Compare changes with those of a file, in order; None where the two models have other variables.

    The difference of a variable is the norm of (these changes - those of the file), relative to the norm of the change
    in the file. Seed states are left out: they count the draws of a process.
    """
    measured: list[tuple[VariableChange, Array, float, float]] = []
    with np.load(path) as saved:
        if not changes or len(saved.files) != len(changes):
            return None
        for name, one in zip(saved.files, changes, strict=True):
            theirs = saved[name]
            if theirs.shape != one.change.shape:
                return None
            measured.append((one, theirs.ravel()[:2], _norm(theirs), _norm(one.change - theirs)))
    weights = [(one.change.size, whole, apart) for one, _, whole, apart in measured if one.kind == "weight"]
    all_changes = math.sqrt(sum(whole**2 for _, whole, _ in weights))
    mean_change = all_changes / math.sqrt(max(1, sum(size for size, _, _ in weights)))
    return ChangeComparison(
        weights=_ratio(math.sqrt(sum(apart**2 for *_, apart in weights)), all_changes),
        variables=[
            _difference(one, first, whole, apart, mean_change if one.kind == "weight" else 0.0)
            for one, first, whole, apart in measured
            if one.kind != "seed"
        ],
    )


def _difference(
    ours: VariableChange, first: Array, whole: float, apart: float, mean_change: float
) -> VariableDifference:
    """Return the difference of a variable whose change in the file has the norm `whole` and begins with `first`."""
    least = NEGLIGIBLE_CHANGE * mean_change * math.sqrt(max(ours.change.size, 1))
    scalar = ours.change.size == 1
    return VariableDifference(
        path=ours.path,
        kind=ours.kind,
        difference=_ratio(apart, max(whole, least)),
        baseline_change=float(first[0]) if scalar else None,
        plan_change=float(ours.change.ravel()[0]) if scalar else None,
    )


def _norm(array: Array) -> float:
    """Return the Euclidean norm, summed in float64."""
    flat = array.ravel()
    return math.sqrt(float(np.einsum("i,i->", flat, flat, dtype="float64")))


def _ratio(part: float, whole: float) -> float:
    """Return a relative difference; of nothing and nothing it is 0. Numbers that are not finite differ entirely."""
    if not math.isfinite(part) or not math.isfinite(whole):
        return LARGEST_DIFFERENCE
    if part == 0.0:
        return 0.0
    return LARGEST_DIFFERENCE if whole == 0.0 else min(part / whole, LARGEST_DIFFERENCE)
