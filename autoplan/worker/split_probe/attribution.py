"""Names the variable, the layer or the loss because of which an update in one micro-step differs from one in two."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras.src import backend

from autoplan.runtime import model_facts
from autoplan.worker.split_probe.fixed_values import described
from autoplan.worker.split_probe.rows import SampleRows
from autoplan.worker.split_probe.updates import Update, UpdateDifference

_SAME_RATIO = 1e-2


def explained(
    model: Any, rows: SampleRows, whole: Update, parts: Update, found: Sequence[UpdateDifference], tolerance: float
) -> str:
    """Return why the update of some rows differs from the update of their halves, in a clause without a full stop."""
    variables = [one for one in found if one.kind == "variable"]
    if variables:
        return _of_a_variable(model, variables[0])
    with contextlib.suppress(Exception):  # a model without a `call` of its own, or with unusual inputs
        layer = _first_layer_with_interacting_rows(model, rows, tolerance)
        if layer is not None:
            return layer
    return _of_the_loss(model, rows, whole, parts, found)


def _of_a_variable(model: Any, difference: UpdateDifference) -> str:
    path = difference.path
    trained = any(variable.path == path for variable in model.trainable_variables)
    kind = "trainable variable" if trained else "non-trainable variable"
    owner = next((described(layer) for layer in _layers(model) if _owns(layer, path)), described(model))
    code = ", by code other than the compiled optimizer" if trained else ""
    return f"the {kind} {path} of {owner} moves at every micro-step{code}: {difference.words}"


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers(include_self=False))


def _owns(layer: Any, path: str) -> bool:
    own = (*layer._trainable_variables, *layer._non_trainable_variables)
    return any(variable.path == path for variable in own)


@dataclass
class _Forward:
    """The results of a forward pass: the outputs of each operation with one row per sample, and added losses."""

    outputs: list[tuple[str, Any]] = field(default_factory=list)
    losses: list[tuple[str, float]] = field(default_factory=list)


def _first_layer_with_interacting_rows(model: Any, rows: SampleRows, tolerance: float) -> str | None:
    whole, parts = _forward(model, rows), [_forward(model, part) for part in rows.parts(2)]
    for (name, own), *others in zip(whole.outputs, *(part.outputs for part in parts), strict=True):
        joined = np.concatenate([output for _, output in others])
        if joined.shape == own.shape and _apart(own, joined) > tolerance:
            return f"the output of {name} for {rows.count} rows differs from its outputs for their halves"
    for (name, own), *others in zip(whole.losses, *(part.losses for part in parts), strict=True):
        mean = float(np.mean([loss for _, loss in others]))
        if abs(own - mean) > tolerance * max(abs(own), *(abs(loss) for _, loss in others)):
            return f"the loss that {name} adds {_values(rows, own, mean)}"
    return None


def _forward(model: Any, rows: SampleRows) -> _Forward:
    found = _Forward()
    x = keras.utils.unpack_x_y_sample_weight(rows.leaves)[0] if rows.kind != "arrays" else rows.leaves["x"]
    inputs = keras.tree.map_structure(_as_fit_has_it, x)

    def output(owner: Any, value: Any) -> None:
        for leaf in keras.tree.flatten(value):
            if getattr(leaf, "shape", ()) and leaf.shape[0] == rows.count:
                found.outputs.append((described(owner), keras.ops.convert_to_numpy(leaf)))

    def loss(owner: Any, value: Any) -> None:
        found.losses.extend(
            (described(owner), float(keras.ops.convert_to_numpy(one))) for one in keras.tree.flatten(value)
        )

    with backend.StatelessScope(), _seen(keras.Operation, "__call__", output), _added(loss):
        model(inputs, training=True)
    return found


def _as_fit_has_it(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return keras.ops.convert_to_tensor(array, dtype=keras.config.floatx() if array.dtype.kind == "f" else None)


@contextlib.contextmanager
def _seen(owner: type, name: str, see: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `see` with the object and the result of each call of a method within this context."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def seen(instance: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(instance, *args, **kwargs)
        see(instance, result)
        return result

    setattr(owner, name, seen)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _added(see: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `see` with each layer and the loss that it adds, instead of adding it."""
    original = keras.layers.Layer.add_loss
    keras.layers.Layer.add_loss = see
    try:
        yield
    finally:
        keras.layers.Layer.add_loss = original


def _apart(one: Any, other: Any) -> float:
    own, parts = np.asarray(one, dtype="float64"), np.asarray(other, dtype="float64")
    size = max(float(np.linalg.norm(own)), float(np.linalg.norm(parts)))
    return float(np.linalg.norm(own - parts)) / size if size else 0.0


def _of_the_loss(model: Any, rows: SampleRows, whole: Update, parts: Update, found: Sequence[UpdateDifference]) -> str:
    name = loss_name(model)
    own, mean = whole.loss, parts.loss
    if own is None or mean is None or all(one.kind != "loss" for one in found):
        worst = max(found, key=lambda one: one.relative)
        return (
            f"the gradient of {worst.path} by {name} in one micro-step of {rows.count} rows differs from the mean of "
            f"those of its halves by {worst.relative:.1e} of its size"
        )
    return f"{name} {_values(rows, own, mean)}"


def _values(rows: SampleRows, own: float, mean: float) -> str:
    """Describe the values of a loss for all rows and for their halves."""
    values = f"{own:.6g} for {rows.count} rows, and {mean:.6g} on average over their halves"
    if abs(own - 2 * mean) <= _SAME_RATIO * abs(own):
        return f"grows with the number of rows, as a sum over them does: it is {values}"
    return f"depends on which rows a micro-step has together: it is {values}"


def loss_name(model: Any) -> str:
    """Return the loss in words: the own code that computes it, or the losses of `compile`."""
    if model_facts.has_custom_train_step(model):
        return f"the loss of {type(model).__name__}'s own micro-step"
    losses = getattr(getattr(model, "_compile_loss", None), "_user_loss", None)
    names = [_name(loss) for loss in keras.tree.flatten(losses) if loss is not None]
    masked = " over unmasked positions" if _output_is_masked(model) else ""
    return f"the loss {', '.join(dict.fromkeys(names))}{masked}" if names else "the loss"


def _output_is_masked(model: Any) -> bool:
    outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
    return any(backend.get_keras_mask(output) is not None for output in outputs)


def _name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    name = getattr(loss, "__name__", None) or getattr(loss, "name", None)
    return str(name or type(loss).__name__)
