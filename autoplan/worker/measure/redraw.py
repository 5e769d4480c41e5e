"""Draws a model's initial weights again with another seed, so that one process can train it from several seeds.

A variable is drawn again by its own initializer. Where that is not known to give the value with which the fit begins,
as for weights that a script loaded or trained before, nothing is drawn, and every seed takes a process of its own.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src import backend as keras_backend
from keras.src.backend.common import global_state
from keras.src.initializers.random_initializers import RandomInitializer

from autoplan.worker.seeds import BASE_SEED

_ATTRIBUTE = "_autoplan_initializer"
_LARGEST_SEED = 10**9


def remember_initializers() -> Callable[[], None]:
    """Remember the initializer of every variable from now on. Returns a function that ends it."""
    original = keras_backend.Variable._initialize_with_initializer

    @functools.wraps(original)
    def initialize(variable: Any, initializer: Any) -> None:
        setattr(variable, _ATTRIBUTE, initializer)
        original(variable, initializer)

    keras_backend.Variable._initialize_with_initializer = initialize
    return functools.partial(setattr, keras_backend.Variable, "_initialize_with_initializer", original)


@dataclass(frozen=True)
class StartingPoint:
    """How each variable gets the value with which a fit begins, for a seed. Values that are zero are not kept."""

    values: tuple[tuple[Any, Callable[[int], Any]], ...]

    @classmethod
    def of(cls, model: Any, *, given_weights: bool) -> StartingPoint | None:
        """Return the starting point of a built model; None where not all of its weights can be drawn again.

        given_weights  keep the weights: only seeds of random numbers are drawn again
        """
        _build_optimizer(model)
        generators = {id(one.state): one for one in _seed_generators(model)}
        own = {id(variable) for variable in model.variables}
        values: list[tuple[Any, Callable[[int], Any]]] = []
        shared = [one.state for one in generators.values() if id(one.state) not in own]
        for variable in [*model.variables, *model.optimizer.variables, *shared]:
            value = _value(variable)
            draw: Callable[[int], Any] | None = None
            if id(variable) in generators:
                drawn = generators[id(variable)]._initial_seed is None
                draw = functools.partial(_seed_state, value) if drawn else None
            elif id(variable) in own and not given_weights:
                known, draw = _drawing(variable, value)
                if not known and variable.trainable:
                    return None
            values.append((variable, draw or _kept(value)))
        return cls(tuple(values))

    def begin(self, seed: int) -> None:
        """Set all variables to where a fit with this seed begins."""
        for variable, value in self.values:
            variable.assign(value(seed))


def _kept(value: Any) -> Callable[[int], Any]:
    """Return a function that gives this value for every seed."""
    if value.any():
        return lambda seed: value
    shape, dtype = value.shape, value.dtype
    return lambda seed: np.zeros(shape, dtype)


def _drawing(variable: Any, value: Any) -> tuple[bool, Callable[[int], Any] | None]:
    """Return whether it is known how this value came about, and how it is drawn with another seed if it was drawn."""
    initializer = getattr(variable, _ATTRIBUTE, None)
    if initializer is None:
        return False, None
    again = np.asarray(keras.ops.convert_to_numpy(initializer(variable.shape, dtype=variable.dtype)))
    if not np.array_equal(again.astype(value.dtype), value):
        return False, None
    if isinstance(initializer, RandomInitializer) and getattr(initializer, "_init_seed", 0) is None:
        return True, functools.partial(_drawn, initializer, variable)
    return True, None


def _drawn(initializer: Any, variable: Any, seed: int) -> Any:
    other = copy.copy(initializer)
    other.seed = _moved(int(initializer.seed), seed)
    return other(variable.shape, dtype=variable.dtype)


def _seed_state(state: Any, seed: int) -> Any:
    return np.asarray([_moved(int(state[0]), seed), 0], dtype=state.dtype)


def _moved(own: int, seed: int) -> int:
    """Return the seed that takes the place of `own`; equal seeds stay equal."""
    return int(np.random.default_rng([own, seed - BASE_SEED]).integers(1, _LARGEST_SEED))


def _seed_generators(model: Any) -> list[Any]:
    """Return the generators of the model's layers, and the one that serves draws without a seed."""
    found = [generator for layer in model._flatten_layers() for generator in layer._seed_generators]
    shared = global_state.get_global_attribute("global_seed_generator")
    return found if shared is None else [*found, shared]


def _build_optimizer(model: Any) -> None:
    """Build the optimizer as `fit` does, so that its variables can be set back."""
    if not model.optimizer.built:
        with keras_backend.name_scope(model.optimizer.name, caller=model.optimizer):
            model.optimizer.build(model.trainable_variables)


def _value(variable: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(variable.value))


def nudge_weights(model: Any) -> None:
    """Change each trainable weight in its last digit, up or down at random."""
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = _value(variable)
        last_digit = 2.0 ** {"float64": -52, "float16": -10, "bfloat16": -7}.get(str(variable.dtype), -23)
        signs = generator.choice([-1.0, 1.0], size=value.shape)
        variable.assign((value * (1 + last_digit * signs)).astype(value.dtype))
