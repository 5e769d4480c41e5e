"""Finds the layers whose LSTM Keras's JAX backend computes with cuDNN on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src import backend

from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.worker.trace.attention_calls import calling_layer, forward_pass
from autoplan.worker.trace.target_platform import seen_as
from cost_models.hardware.platform import TargetPlatform

_GPU = TargetPlatform("gpu", 8.0)
_OPERATIONS = "lstm", "bidirectional_lstm"


def cudnn_lstms(model: Any, arguments: FitArguments, facts: DataFacts) -> dict[str, bool]:
    """Return the layers of a fit's built model whose LSTM is a call of cuDNN on a GPU, in their order.

    The value says whether the layer's dtypes are those that the process sets for all layers.

    Nothing is computed. Keras decides itself, in a forward pass that is traced as on a GPU: a mask, dropout between the
    steps or other activations make it a loop. Where that pass cannot be traced, no layer is named.
    """
    if not any(isinstance(layer, keras.layers.LSTM) for layer in model._flatten_layers()):
        return {}
    found: dict[str, bool] = {}
    try:
        with seen_as(_GPU), _recorded(found):
            forward_pass(model, arguments, facts)
    except Exception:  # noqa: BLE001 -- a user's own call may do anything
        return {}
    return found


@contextmanager
def _recorded(found: dict[str, bool]) -> Iterator[None]:
    """Record the layers whose call cuDNN takes in this context."""
    originals = {name: getattr(backend, name) for name in _OPERATIONS if hasattr(backend, name)}
    for name, original in originals.items():
        setattr(backend, name, _recording(original, found))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(backend, name, original)


def _recording(original: Callable[..., Any], found: dict[str, bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def recording(*arguments: Any, **more: Any) -> Any:
        result = original(*arguments, **more)  # NotImplementedError where cuDNN does not take it
        layer = calling_layer()
        if layer is None:
            found["a function of the script"] = False
        else:
            found[layer.path or layer.name] = layer.dtype_policy.name == keras.config.dtype_policy().name
        return result

    return recording
