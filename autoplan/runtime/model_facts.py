"""Reads facts from a compiled Keras model that decide which configurations are legal: BatchNorm, dropout, losses ..."""

from __future__ import annotations

import gc
import hashlib
import inspect
from collections import Counter
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

import keras

from autoplan.runtime.optimizers import innermost
from autoplan.runtime.user_code.batch_hooks import counts_micro_steps
from autoplan.runtime.user_code.names import code_of, names_in, names_in_own_code, own_bases
from cost_models.config import AttentionMode, Precision

_BATCH_STATISTICS = ("BatchNormalization",)
_RANDOM = ("Dropout", "Noise", "Random", "MixUp", "CutMix", "AugMix")
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional", "ConvLSTM")


FLASH_ATTENTION = "_flash_attention"
"""Where an attention layer of Keras keeps its own `flash_attention`, or the setting of the process when it was made."""


def layers_of(model: Any) -> list[Any]:
    """Return every layer, including nested layers, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def layer_kinds(model: Any) -> list[str]:
    """Return the distinct class names of all layers, sorted."""
    return sorted({type(layer).__name__ for layer in layers_of(model)})


def has_batch_norm(model: Any) -> bool:
    """Return whether the model has BatchNorm, which computes statistics over the micro-batch."""
    return any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(model))


def attention_setting() -> AttentionMode:
    """Return whether attention layers that are created now may use a fused kernel."""
    return AttentionMode.UNFUSED if keras.config.is_flash_attention_enabled() is False else AttentionMode.AUTO


def attention_of(model: Any) -> AttentionMode:
    """Return the setting that the model's attention layers were created under; that of the process if it has none.

    A layer with `flash_attention=True` of its own does not follow the setting.
    """
    kept = [getattr(layer, FLASH_ATTENTION) for layer in layers_of(model) if hasattr(layer, FLASH_ATTENTION)]
    following = [one for one in kept if one is not True]
    if not following:
        return attention_setting()
    return AttentionMode.UNFUSED if all(one is False for one in following) else AttentionMode.AUTO


def lost_flash_attention(model: Any) -> list[str]:
    """Return the layers that were created with `flash_attention=False` and do not have it, as far as it is known.

    Keras 3.15 computes `False or None` in their constructors. It keeps arguments only where all are plain values.
    """
    return [
        layer.path or layer.name
        for layer in layers_of(model)
        if getattr(layer, FLASH_ATTENTION, False) is None
        and getattr(getattr(layer, "_auto_config", None), "config", {}).get("flash_attention") is False
    ]


def has_random_layers(model: Any) -> bool:
    """Return whether the model has active dropout, noise or random augmentation, so that two runs differ."""
    return any(
        any(word in type(layer).__name__ for word in _RANDOM) and getattr(layer, "rate", 1)
        for layer in layers_of(model)
    ) or any(getattr(layer, "dropout", 0) or getattr(layer, "recurrent_dropout", 0) for layer in layers_of(model))


def has_recurrent_layers(model: Any) -> bool:
    """Return whether a layer is recurrent."""
    return any(
        isinstance(layer, keras.layers.RNN) or any(word in type(layer).__name__ for word in _RECURRENT)
        for layer in layers_of(model)
    )


def has_unweighted_metrics(model: Any) -> bool:
    """Return whether a padded row would change a metric: one of `compile(metrics=...)`, or the model's own."""
    compiled = getattr(model, "_compile_metrics", None)
    own = [metric for layer in layers_of(model) for metric in getattr(layer, "_metrics", [])]
    return bool(own or model._metrics or (compiled is not None and compiled._user_metrics))


def own_metrics(model: Any) -> list[str]:
    """Return the names of compiled metrics that are functions or classes of the user's own.

    Keras calls them once for each micro-step, so their values depend on its rows unless they are of single rows.
    """
    compiled = getattr(model, "_compile_metrics", None)
    given = [] if compiled is None else [*_leaves(compiled._user_metrics), *_leaves(compiled._user_weighted_metrics)]
    functions = [one._fn if isinstance(one, keras.metrics.MeanMetricWrapper) else one for one in given]
    return [
        one.__name__ if inspect.isfunction(one) else one.name
        for one in functions
        if isinstance(one, keras.metrics.Metric | FunctionType)
        and not (one if inspect.isfunction(one) else type(one)).__module__.startswith("keras.")
    ]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    return [] if value is None else [value]


def has_custom_train_step(model: Any) -> bool:
    """Return whether the class overrides its micro-step or its loss computation."""
    return any(
        getattr(type(model), name) is not getattr(keras.Model, name)
        for name in ("train_step", "compute_loss", "compute_metrics", "compute_loss_and_updates")
        if hasattr(keras.Model, name)
    )


def counting_code(model: Any) -> list[str]:
    """Return the classes of a model, its layers and its metrics whose own code adds a number at every micro-step."""
    parts = [*model._flatten_layers(), *getattr(model, "metrics", [])]
    return sorted({type(one).__name__ for one in parts if counts_micro_steps(one)})


def other_models(model: Any) -> list[str]:
    """Return the names of other models in this process that have weights of their own, and none of this model's.

    A model that is a part of another one is left out.
    """
    if not _models_without_weights_of(model):
        return []
    gc.collect()  # a model that the script has dropped may still be there
    found = _models_without_weights_of(model)
    whole = [one for one, weights in found if not any(weights < others for _, others in found)]
    return sorted({one.name for one in whole})


def _models_without_weights_of(model: Any) -> list[tuple[Any, set[int]]]:
    """Return models with the identities of their weights, without those that Keras makes inside a Sequential model."""
    every = [one for one in gc.get_objects() if issubclass(type(one), keras.Model) and getattr(one, "built", False)]
    inside = {id(getattr(one, "_functional", None)) for one in every}
    known = {id(weight) for weight in model.weights}
    found = [(one, {id(weight) for weight in one.weights}) for one in every if id(one) not in inside]
    return [(one, weights) for one, weights in found if weights and not weights & known]


def has_added_losses(model: Any) -> bool:
    """Return whether layers add losses of their outputs (`add_loss`, activity regularizers), which ignore weights."""
    return any(
        getattr(layer, "activity_regularizer", None) is not None or "add_loss" in names_in_own_code(type(layer))
        for layer in model._flatten_layers()
    )


def has_masks(model: Any) -> bool:
    """Return whether positions are masked: Keras then averages the loss over the positions left in a micro-step."""
    return any(
        getattr(layer, "mask_zero", False)
        or isinstance(layer, keras.layers.Masking)
        or "compute_mask" in {name for base in own_bases(type(layer)) for name in vars(base)}
        for layer in model._flatten_layers()
    )


def logits_shapes(model: Any) -> list[list[int]]:
    """Return the shapes, without the batch, of outputs that a loss takes as logits of classes, as far as known."""
    losses = keras.tree.flatten(getattr(getattr(model, "_compile_loss", None), "_user_loss", None))
    takes_logits = any(getattr(loss, "_fn_kwargs", {}).get("from_logits") for loss in losses)
    outputs = keras.tree.flatten(getattr(model, "outputs", None) or []) if takes_logits else []
    shapes = [list(output.shape)[1:] for output in outputs if hasattr(output, "shape")]
    return [shape for shape in shapes if shape and None not in shape]


def has_free_dimensions(model: Any) -> bool:
    """Return whether an input of a Functional or Sequential model has an open dimension besides that of the batch."""
    inputs = keras.tree.flatten(getattr(model, "inputs", None))
    return any(None in tuple(spec.shape)[1:] for spec in inputs if spec is not None)


def sums_loss(model: Any) -> bool:
    """Return whether a compiled loss is a sum over the batch; averaging it over micro-steps would make it smaller."""
    losses = getattr(getattr(model, "_compile_loss", None), "_user_loss", None)
    return any(getattr(loss, "reduction", None) == "sum" for loss in keras.tree.flatten(losses))


def why_step_cannot_run(model: Any) -> str:
    """Return how a model's own `train_step` contradicts the backend; "" if it can be called as `fit` calls it.

    Keras calls `train_step(state, data)` on JAX, where it returns the new state, and `train_step(data)` elsewhere.
    """
    step = getattr(model, "train_step", None)
    if step is None or getattr(type(model), "train_step", None) is keras.Model.train_step:
        return ""
    arguments = inspect.signature(step)
    backend = keras.backend.backend()
    called_with = ("state", "data") if backend == "jax" else ("data",)
    if _takes(arguments, len(called_with)):
        return ""
    own = f"{type(model).__name__}.train_step{arguments}"
    if backend == "jax" and _takes(arguments, 1):
        return (
            f"{own} is written for TensorFlow or PyTorch; on JAX, where training steps are traced, Keras calls "
            "train_step(state, data)"
        )
    if backend != "jax" and _takes(arguments, 2):
        return f"{own} is written for JAX; on {backend} Keras calls train_step(data)"
    return f"{own} cannot be called with ({', '.join(called_with)}), as Keras does on {backend}"


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def has_unscaled_loss(model: Any) -> bool:
    """Return whether the class overrides its micro-step and never calls `optimizer.scale_loss` in it.

    In mixed_float16 Keras divides the gradients by the loss scale, which this micro-step did not multiply in.
    """
    cls = type(model)
    if cls.train_step is keras.Model.train_step:
        return False
    calls_keras = {"super", "train_step"} <= set(names_in(code_of(cls.train_step)))
    return not (calls_keras or "scale_loss" in names_in_own_code(cls))


def has_ema(model: Any) -> bool:
    """Return whether the optimizer has a moving average of the weights."""
    return bool(innermost(model.optimizer).use_ema)


def parameters(model: Any) -> int:
    """Return the number of trainable parameters."""
    return sum(
        int(variable.size) if hasattr(variable, "size") else _elements(variable)
        for variable in model.trainable_variables
    )


def _elements(variable: Any) -> int:
    count = 1
    for size in variable.shape:
        count *= int(size)
    return count


def structure(model: Any) -> str:
    """Return the sha256 of the variables' shapes in order, which is equal for two builds of the same code."""
    lines = [f"{'t' if variable.trainable else 's'}{tuple(variable.shape)}" for variable in model.variables]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def losses_of(model: Any) -> str:
    """Return a sha256 of the losses that a model was compiled with and their weights, which is equal for equal losses.

    Functions are equal if their bytecode is, which depends on the version of Python; objects if class and attributes
    are.
    """
    weights = getattr(model, "_compile_config", None)
    weights = weights.config.get("loss_weights") if weights is not None else None
    described = repr((_described(getattr(model, "loss", None)), weights))
    return hashlib.sha256(described.encode()).hexdigest()


def _described(value: Any) -> Any:
    """Return a value that is equal for equal losses: plain values, the code of functions, the attributes of losses."""
    if isinstance(value, Mapping):
        return {name: _described(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_described(one) for one in value]
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, CodeType):
        return value.co_name, value.co_code, _described(value.co_consts), value.co_names
    if isinstance(getattr(value, "__code__", None), CodeType):
        return value.__qualname__, _described(value.__code__)
    own = type(value).__qualname__
    if isinstance(value, keras.losses.Loss):  # Keras numbers the names of instances
        return own, _described({name: one for name, one in vars(value).items() if name != "name"})
    return own


def precision_of(model: Any, set_by_script: set[str]) -> Precision:
    """Return the dtype policy of most layers with weights if it came from a global policy; else OTHER.

    set_by_script  global policies that were set at some time. A global policy does not change layers that have
                   policies of their own, so the precision of such a model is OTHER.
    """
    policies = Counter(layer.dtype_policy.name for layer in layers_of(model) if layer.weights and not layer._layers)
    name = policies.most_common(1)[0][0] if policies else keras.config.dtype_policy().name
    known = {precision.value for precision in Precision}
    return Precision(name) if name in known and name in set_by_script else Precision.OTHER
