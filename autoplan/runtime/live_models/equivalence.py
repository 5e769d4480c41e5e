"""Checks whether a model that was rebuilt from a config is equivalent to the live model.

It compares layers, variables, attributes, and the results for the same batch with the same weights. Attributes and
results reveal what the author of a layer has left out of `get_config`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from autoplan.runtime import model_facts
from autoplan.runtime.data.random_state import preserved_random_state

ROWS = 2
_FREE_DIMENSION = 16
_TOLERANCE = 1e-5
_MAY_DIFFER = frozenset({"name", "seed", "built", "history", "stop_training", "output_names"})
"""Attributes that may differ between two layers of one config."""
_PLAIN = (bool, int, float, str, type(None))


def first_difference(live: Any, made: Any, x: Any = None) -> str | None:
    """Describe the first difference between the live and the rebuilt model; None if they are equivalent.

    made  the rebuilt model, built under the live model's settings and with its weights
    x     some rows of input; None takes arbitrary rows
    """
    pairs = list(zip(live._flatten_layers(), made._flatten_layers(), strict=False))
    if [type(layer) for layer in live._flatten_layers()] != [type(layer) for layer in made._flatten_layers()]:
        return "it has other layers"
    for ours, theirs in pairs[1:]:
        if ours.dtype_policy.name != theirs.dtype_policy.name:
            return f"layer {ours.name!r} gets the dtype policy {theirs.dtype_policy.name}, not {ours.dtype_policy.name}"
    if model_facts.structure(live) != model_facts.structure(made):
        return "its variables have other shapes"
    for ours, theirs in [*pairs, *_compiled_pairs(live, made)]:
        forgotten = _other_attribute(ours, theirs)
        if forgotten is not None:
            named = getattr(ours, "name", type(ours).__name__)
            return f"{type(ours).__name__} {named!r} loses its attribute '{forgotten}', which get_config omits"
    return _other_result(live, made, x)


def _compiled_pairs(live: Any, made: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of the optimizers and metrics that were passed to `compile`."""
    for name in ("optimizer", "metrics", "weighted_metrics"):
        flat = [keras.tree.flatten(model._compile_config.config[name]) for model in (live, made)]
        yield from zip(*flat, strict=False)


def _other_attribute(ours: Any, theirs: Any) -> str | None:
    """Return the first public attribute that a user's own object has lost, or whose plain value has changed."""
    own = type(ours).__module__.partition(".")[0] not in ("keras", "builtins")
    if not own or type(ours) is not type(theirs):
        return None
    for name, value in vars(ours).items():
        if name.startswith("_") or name in _MAY_DIFFER:
            continue
        if not hasattr(theirs, name) or (_is_plain(value) and getattr(theirs, name) != value):
            return str(name)
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _other_result(live: Any, made: Any, x: Any) -> str | None:
    """Compare the results and the new variables of a forward pass, in training mode if that is deterministic.

    Neither model changes.
    """
    batch = _rows(x) if x is not None else _arbitrary_rows(live)
    if batch is None or not live.built:
        return None
    trainable = [variable.value for variable in live.trainable_variables]
    others = [variable.value for variable in live.non_trainable_variables]

    def called(model: Any, *, training: bool) -> list[Any]:
        results = model.stateless_call(trainable, others, batch, training=training)
        return list(keras.tree.flatten(results))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the user's layers appear in their own training
        try:
            training = _same(called(live, training=True), called(live, training=True))
            expected = called(live, training=training)
            if not _same(expected, called(live, training=training)):
                return None  # the model draws random numbers even outside training
        except Exception:  # noqa: BLE001 -- the model may not accept arbitrary rows; then nothing is compared
            return None
        try:
            found = called(made, training=training)
        except Exception as error:  # noqa: BLE001 -- any exception of the user's code is the difference
            return f"calling it fails ({type(error).__name__}: {error})"
    if _same(expected, found):
        return None
    return "it computes other results from the same inputs and weights; a get_config may be incomplete"


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(_equal, ours, theirs))


def _equal(ours: Any, theirs: Any) -> bool:
    first, second = (keras.ops.convert_to_numpy(value).astype("float64") for value in (ours, theirs))
    return first.shape == second.shape and bool(
        np.allclose(first, second, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    )


def _rows(x: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: np.asarray(leaf[:ROWS]), x)


def _arbitrary_rows(model: Any) -> Any:
    """Return rows that match the model's symbolic inputs; None if it has none, or if an input is text."""
    inputs = getattr(getattr(model, "_functional", None) or model, "_inputs_struct", None)
    if inputs is None or any(tensor.dtype == "string" for tensor in keras.tree.flatten(inputs)):
        return None
    generator = np.random.default_rng(0)

    def made(tensor: Any) -> Any:
        shape = (ROWS, *(size or _FREE_DIMENSION for size in tensor.shape[1:]))
        if keras.backend.is_float_dtype(tensor.dtype):
            return generator.standard_normal(shape).astype(tensor.dtype)
        return np.zeros(shape, dtype=tensor.dtype)

    return keras.tree.map_structure(made, inputs)


@contextmanager
def preserved_global_state() -> Iterator[None]:
    """Restore global generators and name counters after this context, because building a model advances them."""
    generator = global_state.get_global_attribute("global_seed_generator")
    drawn = None if generator is None else keras.ops.convert_to_numpy(generator.state).copy()
    names = dict(global_state.get_global_attribute("object_name_uids", default={}))
    try:
        with preserved_random_state():
            yield
    finally:
        global_state.set_global_attribute("global_seed_generator", generator)
        if generator is not None:
            generator.state.assign(drawn)
        counters = global_state.get_global_attribute("object_name_uids")
        if counters is not None:
            counters.clear()
            counters.update(names)
