"""Reads and sets knobs of a compiled model, such as jit_compile: a new knob of this kind registers a function here.

One registered function sets a knob. `read` returns the script's own value of it; without `read` the script's own value
is the default of the knob.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoplan.errors import ConfigError

Setter = Callable[[Any, Any], None]


@dataclass(frozen=True)
class ModelSetting:
    """How a model takes the value of one knob, and how its own value is read."""

    set: Setter
    read: Callable[[Any], Any] | None


_SETTINGS: dict[str, ModelSetting] = {}


def model_setting(name: str, *, read: Callable[[Any], Any] | None = None) -> Callable[[Setter], Setter]:
    """Register the function that sets a field of TrainConfig on a model. ValueError for a second one."""

    def register(function: Setter) -> Setter:
        if name in _SETTINGS:
            raise ValueError(f"two functions set {name} on a model")
        _SETTINGS[name] = ModelSetting(function, read)
        return function

    return register


def names() -> tuple[str, ...]:
    """Return the fields of TrainConfig that are settings of a model."""
    return tuple(_SETTINGS)


def set_value(model: Any, name: str, value: Any) -> None:
    """Set one field on a compiled model. ConfigError where Keras cannot do that to this model."""
    _SETTINGS[name].set(model, value)


def own_values(model: Any) -> dict[str, Any]:
    """Return the script's own values, as far as a model has them."""
    return {name: one.read(model) for name, one in _SETTINGS.items() if one.read is not None}


def _compiles(model: Any) -> bool:
    return bool(model.jit_compile) and not model.run_eagerly


@model_setting("jit_compile", read=_compiles)
def set_jit_compile(model: Any, value: bool) -> None:
    """Set jit_compile. Keras only warns if it cannot compile a layer, but that would be another configuration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.jit_compile = value
    if value and not model.jit_compile:
        kinds = sorted({type(layer).__name__ for layer in model._flatten_layers() if not layer.supports_jit})
        what = f"its layers of type {', '.join(kinds)}" if kinds else "it on this device"
        raise ConfigError(f"the model {model.name!r} cannot have jit_compile=True, because Keras cannot compile {what}")
    if value:
        model.run_eagerly = False


@model_setting("steps_per_execution", read=lambda model: model.steps_per_execution)
def set_steps_per_execution(model: Any, value: int) -> None:
    """Set the micro-steps of one call of the compiled function."""
    model.steps_per_execution = value
