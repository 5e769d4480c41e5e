"""Replaces random draws and batch statistics by fixed values while micro-steps run, and records which layers took them.

With fixed values, a micro-step is a function of its rows and of the model's variables. So two micro-steps can be
compared, and the layers that draw are known by what they call, not by their names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import keras

_SHORTEST_STACK = 2
_LIBRARIES = ("keras.", "autoplan.")
"""Packages whose functions are not named as the origin of a draw."""


@dataclass
class Recorded:
    """Layers, by name and class, that took random numbers or batch statistics.

    shared_masks   those that dropped the same units in all rows: an update in two micro-steps draws two masks
    shared_draws   those that drew numbers that are not of single rows, as noise of weights or of gradients
    shuffles       those that shuffled values of a micro-step, as rows that are paired with others
    rows           rows of the micro-step that runs; None: none does
    """

    random_draws: list[str] = field(default_factory=list)
    shared_masks: list[str] = field(default_factory=list)
    shared_draws: list[str] = field(default_factory=list)
    shuffles: list[str] = field(default_factory=list)
    batch_statistics: list[str] = field(default_factory=list)
    rows: int | None = None

    def draw(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Record a draw by one of the functions of `_FIXED_DRAWS`, or of a seed."""
        caller = _caller()
        _add(self.random_draws, caller)
        if function is _shuffle or self._are_indices_of_rows(function, arguments):
            _add(self.shuffles, caller)
        elif function is _dropout:
            if _has_one_mask(**arguments):
                _add(self.shared_masks, caller)
        elif "shape" in arguments and self._is_shared(arguments["shape"]):
            _add(self.shared_draws, caller)

    def _are_indices_of_rows(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
        most = arguments.get("maxval")
        return function is _randint and self.rows is not None and isinstance(most, int) and most == self.rows

    def _is_shared(self, shape: Any) -> bool:
        """Return whether no dimension counts rows: neither their number nor a multiple, as of tokens or heads of rows.

        A dimension that is not known while a program is traced counts rows.
        """
        sizes = list(shape) if isinstance(shape, Iterable) else [shape]
        known = all(isinstance(size, int) for size in sizes)
        return bool(self.rows) and known and not any(size and size % self.rows == 0 for size in sizes)

    def split_reason(self) -> str:
        """Return why an update in several micro-steps draws otherwise than in one; "" if it does not."""
        reasons = {
            "drops the same units in all rows of a micro-step": self.shared_masks,
            "draws random numbers that all rows of a micro-step share, and another split draws them more often": (
                self.shared_draws
            ),
            "shuffles the rows of a micro-step, and a smaller one has fewer rows to pair": self.shuffles,
        }
        return next((f"{', '.join(names)} {text}" for text, names in reasons.items() if names), "")

    def statistics(self, layer: Any) -> None:
        _add(self.batch_statistics, described(layer))


def described(layer: Any) -> str:
    """Return the name and the class of a layer, or of another object that takes part in a micro-step."""
    kind = type(layer).__name__
    name = getattr(layer, "name", None)
    return f"{name} ({kind})" if isinstance(name, str) and name else kind


@contextlib.contextmanager
def fixed_values() -> Iterator[Recorded]:
    """Replace random draws and batch statistics within this context. Programs traced in it keep the fixed values."""
    recorded = Recorded()
    with contextlib.ExitStack() as stack:
        for module, name, replacement in _replacements(recorded):
            original = getattr(module, name)
            setattr(module, name, functools.wraps(original)(replacement(original)))
            stack.callback(setattr, module, name, original)
        yield recorded


Replace = Callable[[Callable[..., Any]], Callable[..., Any]]


def _replacements(recorded: Recorded) -> Iterator[tuple[Any, str, Replace]]:
    backend = importlib.import_module(f"keras.src.backend.{keras.backend.backend()}.random")
    for name, value in _FIXED_DRAWS.items():
        yield backend, name, _recording(recorded, value)
    yield keras.random.SeedGenerator, "next", _recording(recorded, _present_seed)
    yield keras.layers.BatchNormalization, "call", functools.partial(_moving_statistics, recorded)


def _recording(recorded: Recorded, value: Callable[..., Any]) -> Replace:
    def replacement(_: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            recorded.draw(value, inspect.signature(value).bind(*args, **kwargs).arguments)
            return value(*args, **kwargs)

        return draw

    return replacement


def _moving_statistics(recorded: Recorded, original: Callable[..., Any]) -> Callable[..., Any]:
    """Normalize by moving statistics where the layer would take those of the micro-step."""

    def call(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if training and layer.trainable:
            recorded.statistics(layer)
        return original(layer, inputs, training=False, mask=mask)

    return call


def _present_seed(generator: Any, ordered: bool = True) -> Any:
    return generator.state.value * 1


def _filled(shape: Any, value: Any, dtype: Any) -> Any:
    dtype = dtype or keras.config.floatx()
    return keras.ops.cast(keras.ops.broadcast_to(value, shape), dtype)


def _normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    return _filled(shape, mean, dtype)


def _uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    return _filled(shape, (minval + maxval) / 2, dtype)


def _randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
    return _filled(shape, (minval + maxval) // 2, dtype)


def _categorical(logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None) -> Any:
    likeliest = keras.ops.argmax(logits, axis=-1, keepdims=True)
    return keras.ops.cast(keras.ops.repeat(likeliest, num_samples, axis=-1), dtype)


def _dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
    return inputs


def _has_one_mask(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> bool:
    return noise_shape is not None and len(noise_shape) > 0 and noise_shape[0] == 1


def _shuffle(x: Any, axis: int = 0, seed: Any = None) -> Any:
    return x


def _gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Any:
    return _filled(shape, alpha, dtype)


def _binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> Any:
    return _filled(shape, counts * probabilities, dtype)


def _beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Any:
    return _filled(shape, alpha / (alpha + beta), dtype)


_FIXED_DRAWS: dict[str, Callable[..., Any]] = {
    "normal": _normal,
    "uniform": _uniform,
    "randint": _randint,
    "truncated_normal": _normal,
    "categorical": _categorical,
    "dropout": _dropout,
    "shuffle": _shuffle,
    "gamma": _gamma,
    "binomial": _binomial,
    "beta": _beta,
}
"""Functions of a backend's module `random`, with the value that each returns instead: a mean, or its input."""


def _caller() -> str:
    """Return the layer, loss or model that draws: the nearest one up the stack."""
    frame: FrameType | None = sys._getframe(_SHORTEST_STACK)
    function = ""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.layers.Layer | keras.losses.Loss) and not isinstance(owner, keras.Model):
            return described(owner)
        own = not frame.f_globals.get("__name__", "").startswith(_LIBRARIES)
        if isinstance(owner, keras.Model) and (own or function):
            return function or described(owner)
        if own and not function:
            function = f"{frame.f_code.co_name}()"
        frame = frame.f_back
    return function or "a function"


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
