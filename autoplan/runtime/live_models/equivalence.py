"""Is a model that was made from a live one's config the same one? Layers, variables, attributes, what it computes.

A config says what its author wrote into `get_config`. What was forgotten there shows in the layers' attributes, or in
what the two compute of the same batch with the same weights.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from autoplan.runtime import model_facts

ROWS = 2
_FREE_DIMENSION = 16
_TOLERANCE = 1e-5
_OTHER_BY_NATURE = frozenset({"name", "seed", "built", "history", "stop_training", "output_names"})
"""Attributes that two makings of one layer may differ in."""
_PLAIN = (bool, int, float, str, type(None))


def first_difference(live: Any, made: Any, x: Any = None) -> str | None:
    """The first thing in which the made model is not the live one, in words; None where there is none.

    The made model has the live one's weights by then, and was made under its settings. x: some rows of its inputs;
    None takes arbitrary ones.
    """
    pairs = list(zip(live._flatten_layers(), made._flatten_layers(), strict=False))
    if [type(layer) for layer in live._flatten_layers()] != [type(layer) for layer in made._flatten_layers()]:
        return "its layers are others"
    for ours, theirs in pairs[1:]:
        if ours.dtype_policy.name != theirs.dtype_policy.name:
            return f"layer {ours.name!r} gets the dtype policy {theirs.dtype_policy.name}, not {ours.dtype_policy.name}"
    if model_facts.structure(live) != model_facts.structure(made):
        return "its variables have other shapes"
    for ours, theirs in [*pairs, *_compiled_pairs(live, made)]:
        forgotten = _other_attribute(ours, theirs)
        if forgotten is not None:
            named = getattr(ours, "name", type(ours).__name__)
            return f"{type(ours).__name__} {named!r} loses its attribute '{forgotten}', which get_config leaves out"
    return _other_result(live, made, x)


def _compiled_pairs(live: Any, made: Any) -> Iterator[tuple[Any, Any]]:
    """The optimizers and metrics of both, as `compile` was given them."""
    for name in ("optimizer", "metrics", "weighted_metrics"):
        flat = [keras.tree.flatten(model._compile_config.config[name]) for model in (live, made)]
        yield from zip(*flat, strict=False)


def _other_attribute(ours: Any, theirs: Any) -> str | None:
    """The first public attribute of plain values that a user's own object has lost or changed."""
    own = type(ours).__module__.partition(".")[0] not in ("keras", "builtins")
    if not own or type(ours) is not type(theirs):
        return None
    for name, value in vars(ours).items():
        if name.startswith("_") or name in _OTHER_BY_NATURE:
            continue
        if not hasattr(theirs, name) or (_is_plain(value) and getattr(theirs, name) != value):
            return str(name)
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _other_result(live: Any, made: Any, x: Any) -> str | None:
    """Compare a forward pass, in training mode where that is the same twice: results, and what it does to variables.

    Changes neither model.
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
        warnings.simplefilter("ignore")  # of the user's layers; their own training shows them
        try:
            training = _same(called(live, training=True), called(live, training=True))
            expected = called(live, training=training)
            if not _same(expected, called(live, training=training)):
                return None  # it draws numbers whatever it is called for
        except Exception:  # noqa: BLE001 -- arbitrary rows need not suit a model; then nothing is compared
            return None
        try:
            found = called(made, training=training)
        except Exception as error:  # noqa: BLE001 -- whatever the user's code raises is the difference
            return f"calling it fails ({type(error).__name__}: {error})"
    if _same(expected, found):
        return None
    return "it computes something else from the same inputs and weights; does a get_config leave something out?"


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
    """Rows like the model's symbolic inputs; None where it has none, or takes text."""
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
def undisturbed() -> Iterator[None]:
    """Making a model draws seeds and counts names: leave the process's generators and counters as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- the generator that users seed
    generator = global_state.get_global_attribute("global_seed_generator")
    drawn = None if generator is None else keras.ops.convert_to_numpy(generator.state).copy()
    of_torch = _torch_generator()
    torch_state = None if of_torch is None else of_torch.get_state()
    names = dict(global_state.get_global_attribute("object_name_uids", default={}))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if of_torch is not None:
            of_torch.set_state(torch_state)
        global_state.set_global_attribute("global_seed_generator", generator)
        if generator is not None:
            generator.state.assign(drawn)
        counters = global_state.get_global_attribute("object_name_uids")
        if counters is not None:
            counters.clear()
            counters.update(names)


def _torch_generator() -> Any:
    """PyTorch's own generator, which its dropout draws from; None on another backend."""
    if keras.backend.backend() != "torch":
        return None
    import torch

    return torch.default_generator
