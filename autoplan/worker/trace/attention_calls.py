"""Records how a model calls dot-product attention: shapes, masks, and whether the setting of Keras decides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src import backend
from keras.src.backend.common import global_state

from autoplan.plan.attention_calls import AttentionCall
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.model_facts import FLASH_ATTENTION, layers_of
from autoplan.runtime.user_code.names import names_in_own_code
from autoplan.worker.trace.trace_fit import training_batch

_OPERATION, _SETTING = "dot_product_attention", "is_flash_attention_enabled"


def attention_calls(model: Any, arguments: FitArguments, facts: DataFacts) -> list[AttentionCall]:
    """Return the calls of dot-product attention in the forward pass of a fit's built model, in their order.

    Nothing is computed. Where the forward pass cannot be traced by itself, as in a model with only a `train_step`, one
    call without shapes stands for each layer that may make one.
    """
    suspects = [layer for layer in model._flatten_layers() if _may_call(layer)]
    if not suspects and not any(type(one).__name__ == "DotProductAttention" for one in _operations(model)):
        return []
    found: list[AttentionCall] = []
    try:
        with _recorded(found):
            forward_pass(model, arguments, facts)
    except Exception:  # noqa: BLE001 -- a user's own call may do anything
        return [_unknown(layer) for layer in suspects if not _keeps_scores(layer)]
    return found


def forward_pass(model: Any, arguments: FitArguments, facts: DataFacts) -> None:
    """Trace the forward pass of a fit's built model on one sample. Any error of the model's own code."""
    batch = training_batch(model, arguments, facts, 1)
    backend.compute_output_spec(functools.partial(model, training=True), _specs(batch[0]))


def _operations(model: Any) -> Iterator[Any]:
    for one in (model, *layers_of(model)):
        yield from getattr(one, "operations", ())


def _may_call(layer: Any) -> bool:
    return hasattr(layer, FLASH_ATTENTION) or _OPERATION in names_in_own_code(type(layer))


def _keeps_scores(layer: Any) -> bool:
    """Return whether a layer has dropout on its scores, which no fused kernel of Keras has."""
    return bool(getattr(layer, "_dropout", 0) or getattr(layer, "dropout", 0))


def _specs(x: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: backend.KerasTensor(leaf.shape, str(leaf.dtype)), x)


def _unknown(layer: Any) -> AttentionCall:
    own = getattr(layer, FLASH_ATTENTION, None)
    return AttentionCall(layer=layer.path or layer.name, follows_setting=_follows(layer, own))


def _follows(layer: Any, flash_attention: bool | None) -> bool:
    """Return whether Keras's setting at the layer's creation decides the argument `flash_attention` of its call."""
    if hasattr(layer, FLASH_ATTENTION):
        return flash_attention is not True
    return layer is not None and _SETTING in names_in_own_code(type(layer))


@contextmanager
def _recorded(found: list[AttentionCall]) -> Iterator[None]:
    """Record the calls in this context, and compute each without a fused kernel, which may not exist here."""
    original: Callable[..., Any] = backend.nn.dot_product_attention

    @functools.wraps(original)
    def recording(query: Any, key: Any, value: Any, *arguments: Any, **more: Any) -> Any:
        names = ("bias", "mask", "scale", "is_causal", "flash_attention")
        given = {**dict(zip(names, arguments, strict=False)), **more}
        layer = calling_layer()
        found.append(
            AttentionCall(
                layer="a function of the script" if layer is None else layer.path or layer.name,
                follows_setting=_follows(layer, given.get("flash_attention")),
                query=list(query.shape),
                key=list(key.shape),
                value=list(value.shape),
                dtype=backend.standardize_dtype(query.dtype),
                masked=given.get("mask") is not None,
                causal=bool(given.get("is_causal")),
            )
        )
        return original(query, key, value, **{**given, "flash_attention": False})

    backend.nn.dot_product_attention = recording
    try:
        yield
    finally:
        backend.nn.dot_product_attention = original


def calling_layer() -> Any:
    """Return the innermost layer that is being called; None outside of layers."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = (one.caller for one in reversed(scopes))
    return next((one for one in callers if isinstance(one, keras.layers.Layer)), None)
