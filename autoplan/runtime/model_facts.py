"""What a compiled model is, as far as a configuration cares."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any

import keras

from autoplan.runtime.optimizers import innermost
from cost_models.config import Precision

_BATCH_STATISTICS = ("BatchNormalization",)
_RANDOM = ("Dropout", "Noise", "Random", "MixUp", "CutMix", "AugMix")
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional", "ConvLSTM")


def layers_of(model: Any) -> list[Any]:
    """Every layer, nested ones included, the model itself left out."""
    return list(model._flatten_layers(include_self=False))


def layer_kinds(model: Any) -> list[str]:
    """Class names of all layers, sorted, each once."""
    return sorted({type(layer).__name__ for layer in layers_of(model)})


def has_batch_norm(model: Any) -> bool:
    """Whether statistics over the micro-batch are part of the model."""
    return any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(model))


def has_random_layers(model: Any) -> bool:
    """Dropout, noise or random augmentation that is switched on: two runs see different numbers."""
    return any(
        any(word in type(layer).__name__ for word in _RANDOM) and getattr(layer, "rate", 1)
        for layer in layers_of(model)
    ) or any(getattr(layer, "dropout", 0) or getattr(layer, "recurrent_dropout", 0) for layer in layers_of(model))


def has_recurrent_layers(model: Any) -> bool:
    """Whether a layer loops over time."""
    return any(
        isinstance(layer, keras.layers.RNN) or any(word in type(layer).__name__ for word in _RECURRENT)
        for layer in layers_of(model)
    )


def has_unweighted_metrics(model: Any) -> bool:
    """Metrics that a padded row would enter: those of `compile(metrics=...)` and of the model's own."""
    compiled = getattr(model, "_compile_metrics", None)
    own = [metric for layer in layers_of(model) for metric in getattr(layer, "_metrics", [])]
    return bool(own or model._metrics or (compiled is not None and compiled._user_metrics))


def has_custom_train_step(model: Any) -> bool:
    """Whether the class brings its own micro-step or loss computation."""
    return any(
        getattr(type(model), name) is not getattr(keras.Model, name)
        for name in ("train_step", "compute_loss", "compute_metrics", "compute_loss_and_updates")
        if hasattr(keras.Model, name)
    )


def has_added_losses(model: Any) -> bool:
    """Losses of layers' own outputs (`add_loss`, activity regularizers): a row enters them whatever its weight."""
    return any(
        getattr(layer, "activity_regularizer", None) is not None or "add_loss" in _words_of_own_code(type(layer))
        for layer in model._flatten_layers()
    )


def has_masks(model: Any) -> bool:
    """Whether positions are left out of the loss: Keras then averages over those that a micro-step has left."""
    return any(
        getattr(layer, "mask_zero", False)
        or isinstance(layer, keras.layers.Masking)
        or "compute_mask" in {name for base in _own_bases(type(layer)) for name in vars(base)}
        for layer in model._flatten_layers()
    )


def sums_loss(model: Any) -> bool:
    """Whether a compiled loss is a sum over the batch: cut into micro-steps that are averaged, it is less."""
    losses = getattr(getattr(model, "_compile_loss", None), "_user_loss", None)
    return any(getattr(loss, "reduction", None) == "sum" for loss in keras.tree.flatten(losses))


def own_optimizers(model: Any) -> list[str]:
    """Attributes that hold optimizers which the model's own micro-step applies besides the one that was compiled.

    Accumulation is a setting of the compiled optimizer, so it does not reach these.
    """
    if type(model).train_step is keras.Model.train_step:
        return []
    compiled = (model.optimizer, innermost(model.optimizer))
    return [
        name
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer) and not any(value is one for one in compiled)
    ]


def leaves_loss_unscaled(model: Any) -> bool:
    """Whether the class brings its own micro-step and never calls `optimizer.scale_loss` in it.

    In mixed_float16 Keras divides the gradients by a scale that such a micro-step did not put in.
    """
    cls = type(model)
    if cls.train_step is keras.Model.train_step:
        return False
    calls_keras = {"super", "train_step"} <= set(_words(_code(cls.train_step)))
    return not (calls_keras or "scale_loss" in _words_of_own_code(cls))


def _words_of_own_code(cls: type) -> set[str]:
    """Names that a class's functions use, those of its bases included; Keras's own classes are left out."""
    return {word for base in _own_bases(cls) for member in vars(base).values() for word in _words(_code(member))}


def _own_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base is not object and base.__module__.partition(".")[0] != "keras"]


def _code(member: Any) -> CodeType | None:
    """The code of a function, also behind decorators (`tf.function` keeps it as `python_function`)."""
    function = getattr(member, "python_function", member)
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _words(code: CodeType | None) -> Iterator[str]:
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words(constant)


def has_ema(model: Any) -> bool:
    """Whether the optimizer keeps an average of the weights."""
    return bool(innermost(model.optimizer).use_ema)


def parameters(model: Any) -> int:
    """Number of trainable weights' elements."""
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
    """sha256 over the variables' shapes in order: equal for two builds of the same code, names and values left out."""
    lines = [f"{'t' if variable.trainable else 's'}{tuple(variable.shape)}" for variable in model.variables]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def precision_of(model: Any, set_by_script: set[str]) -> Precision:
    """The policy that most weighted layers compute under, if a global policy brought it; else OTHER.

    `set_by_script` holds the global policies that were current at some time. A model whose layers carry policies of
    their own cannot be moved by a global one, so its precision has no name.
    """
    policies = Counter(layer.dtype_policy.name for layer in layers_of(model) if layer.weights and not layer._layers)
    name = policies.most_common(1)[0][0] if policies else keras.config.dtype_policy().name
    known = {precision.value for precision in Precision}
    return Precision(name) if name in known and name in set_by_script else Precision.OTHER
