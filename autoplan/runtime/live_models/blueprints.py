"""A live model -> what it can be built from again under other settings: config, own classes, how it is compiled.

Keras's configs hold each layer's resolved dtype policy, and name custom classes without holding them. In a blueprint a
layer whose policy is that of most layers says "the global one" instead, and every class and function that Keras does
not ship stands beside the config under a name of its own.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.models.functional import Functional
from keras.src.saving import serialization_lib

from autoplan.runtime import model_facts
from autoplan.runtime.live_models.keras_serialization import Recorder

FLOAT32 = "float32"


@dataclass(frozen=True)
class Blueprint:
    """What a model is built from.

    config    the model as Keras serializes it; a layer's dtype None is the global policy
    custom    classes and functions that the config names, with what makes them
    compiled  arguments of `compile`: optimizer and metrics serialized, the others as they are
    registered   those of them that the user registered with Keras, by that name
    policy    the dtype policy that most layers of the live model have
    trainable   whether each layer is, in the order of `_flatten_layers`
    kept      names of output layers that stay float32 under a mixed policy
    """

    config: dict[str, Any]
    custom: dict[str, Any]
    registered: dict[str, Any]
    compiled: dict[str, Any]
    policy: str
    trainable: list[bool]
    kept: list[str] = field(default_factory=list)


def record(model: Any) -> Blueprint:
    """The blueprint of a compiled Functional or Sequential model. Nothing of the model changes.

    Raises what a `get_config` raises.
    """
    policy = main_policy(model)
    outputs = output_layers(model) if policy == FLOAT32 else []
    recorder = Recorder(policy, outputs)
    with recorder.recording():
        config = serialization_lib.serialize_keras_object(model)
        compiled = _compile_arguments(model)
    kept = [layer.name for layer in outputs if id(layer) in recorder.kept and not _within(layer, outputs)]
    return Blueprint(
        config=_without_compiling(config),
        custom=recorder.custom,
        registered=recorder.registered,
        compiled=compiled,
        policy=policy,
        trainable=[layer.trainable for layer in model._flatten_layers()],
        kept=kept,
    )


def build(blueprint: Blueprint) -> Any:
    """The model, without weights, under the global policy, RematScope and distribution of this process."""
    with warnings.catch_warnings(), serialization_lib.ObjectSharingScope():
        warnings.simplefilter("ignore")  # a layer that the graph builds later says that it looks unbuilt
        return _deserialized(blueprint.config, blueprint)


def freeze_alike(model: Any, blueprint: Blueprint) -> None:
    """Freeze the layers that are frozen in the live model: a config freezes a layer, and not what is within it."""
    for layer, trainable in zip(model._flatten_layers(), blueprint.trainable, strict=False):
        if layer.trainable != trainable:
            layer.trainable = trainable


def compile_as_recorded(model: Any, blueprint: Blueprint) -> None:
    """Compile a built model with the live model's arguments; its optimizer is new."""
    serialized = {"optimizer", "metrics", "weighted_metrics"}
    model.compile(
        **{
            name: _deserialized(value, blueprint) if name in serialized else value
            for name, value in blueprint.compiled.items()
        }
    )


def main_policy(model: Any) -> str:
    """The dtype policy of most layers with weights; the global one where there are none."""
    policies = Counter(layer.dtype_policy.name for layer in weighted_layers(model))
    return str(policies.most_common(1)[0][0]) if policies else str(keras.config.dtype_policy().name)


def weighted_layers(model: Any) -> list[Any]:
    """Layers that hold weights themselves."""
    return [layer for layer in model_facts.layers_of(model) if layer.weights and not layer._layers]


def output_layers(model: Any) -> list[Any]:
    """The layers whose results are the model's, those within them included."""
    if isinstance(model, keras.Sequential):
        found = list(_of_layer(model.layers[-1])) if model.layers else []
    elif isinstance(model, Functional):
        found = [layer for tensor in model.outputs for layer in _behind(tensor)]
    else:
        found = []
    return list({id(layer): layer for layer in found}.values())


def _behind(tensor: Any) -> Iterable[Any]:
    """The layers that a symbolic tensor comes from, past operations that are no layers."""
    operation, node_index, _ = tensor._keras_history
    if isinstance(operation, keras.Layer):
        yield from _of_layer(operation)
        return
    for source in operation._inbound_nodes[node_index].input_tensors:
        yield from _behind(source)


def _of_layer(layer: Any) -> Iterable[Any]:
    if isinstance(layer, keras.Sequential | Functional):
        yield from output_layers(layer)
    elif not isinstance(layer, keras.layers.InputLayer):
        yield from layer._flatten_layers()


def _within(layer: Any, others: Iterable[Any]) -> bool:
    return any(layer is not other and layer in other._flatten_layers(include_self=False) for other in others)


def _compile_arguments(model: Any) -> dict[str, Any]:
    given = model._compile_config.config
    optimizer, scaled = model.optimizer, isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled and not isinstance(given["optimizer"], keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # `compile` put the wrapper there, and will again where it is due
    serialize = serialization_lib.serialize_keras_object
    return {
        "optimizer": serialize(optimizer),
        "loss": given["loss"],
        "loss_weights": given["loss_weights"],
        "metrics": serialize(given["metrics"]),
        "weighted_metrics": serialize(given["weighted_metrics"]),
        "run_eagerly": model.run_eagerly,
        "steps_per_execution": model.steps_per_execution,
        "jit_compile": _jit_compile(model),
        "auto_scale_loss": scaled or model.dtype_policy.name != "mixed_float16",
    }


def _jit_compile(model: Any) -> Any:
    """ "auto" where that comes to the same, for it comes to something else on another backend."""
    as_auto = not model.run_eagerly and model.jit_compile == model._resolve_auto_jit_compile()
    return "auto" if as_auto else model.jit_compile


def _without_compiling(config: Any) -> Any:
    """The config of a model that is compiled apart, and so are the models within it."""
    if isinstance(config, dict):
        return {key: _without_compiling(value) for key, value in config.items() if key != "compile_config"}
    if isinstance(config, list | tuple):
        return type(config)(_without_compiling(value) for value in config)
    return config


def _deserialized(config: Any, blueprint: Blueprint) -> Any:
    # `from_config` methods take their configs apart.
    return serialization_lib.deserialize_keras_object(
        copy.deepcopy(config), custom_objects=blueprint.custom, safe_mode=False
    )
