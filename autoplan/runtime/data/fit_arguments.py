"""`FitArguments`: the arguments of `keras.Model.fit` as a typed dictionary, and functions that change some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, cast


class FitArguments(TypedDict, total=False):
    """Arguments of `fit`; arguments that a script does not give are absent."""

    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: bool | str
    class_weight: Mapping[int, float] | None
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: Any


def without(arguments: FitArguments, *names: str) -> FitArguments:
    """Return the arguments except those with these names."""
    return cast("FitArguments", {name: value for name, value in arguments.items() if name not in names})


def map_data(function: Callable[[Any], Any], arguments: FitArguments) -> FitArguments:
    """Return x, y and sample_weight, each transformed by a function; absent data are None."""
    return {
        "x": function(arguments.get("x")),
        "y": function(arguments.get("y")),
        "sample_weight": function(arguments.get("sample_weight")),
    }
