"""Records a live model as a `Blueprint` (config, custom classes, compile arguments), and builds a model from it.

Keras's configs contain the resolved dtype policy of each layer, and only the names of custom classes. In a blueprint,
a layer with the policy of most layers has the global policy instead, and every class and function that is not part of
Keras is stored beside the config under a unique name.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import keras
from keras.src.models.functional import Functional
from keras.src.saving import serialization_lib

from autoplan.runtime import model_facts
from autoplan.runtime.live_models.keras_serialization import KerasConfig, Recorder

FLOAT32 = "float32"


class CompileArguments(TypedDict):
    """Arguments of `compile`; optimizer and metrics are serialized."""

    optimizer: KerasConfig
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    run_eagerly: bool
    steps_per_execution: int
    jit_compile: bool | str
    auto_scale_loss: bool


@dataclass(frozen=True)
class Blueprint:
    """Everything that a model is rebuilt from.

    config      the model as Keras serializes it; the dtype None of a layer means the global policy
    custom      classes and functions that the config names, or factories of them
    registered  classes and functions that the user registered with Keras, by their registered names
    compiled    arguments of `compile`: optimizer and metrics serialized, the others as they are
    policy      the dtype policy of most layers of the live model
    trainable   whether each layer is trainable, in the order of `_flatten_layers`
    float32_outputs   names of output layers that stay float32 under a mixed policy
    """

    config: KerasConfig
    custom: dict[str, object]
    registered: dict[str, object]
    compiled: CompileArguments
    policy: str
    trainable: list[bool]
    float32_outputs: list[str] = field(default_factory=list)


def record(model: Any) -> Blueprint:
    """Return the blueprint of a compiled Functional or Sequential model, without changing the model.

    Exceptions of a `get_config` pass through.
    """
    policy = main_policy(model)
    outputs = output_layers(model) if policy == FLOAT32 else []
    recorder = Recorder(policy, outputs)
    with recorder.recording():
        config = serialization_lib.serialize_keras_object(model)
        compiled = _compile_arguments(model)
    unchanged = recorder.outputs_with_policy
    float32_outputs = [layer.name for layer in outputs if id(layer) in unchanged and not _within(layer, outputs)]
    return Blueprint(
        config=_without_compiling(config),
        custom=recorder.custom,
        registered=recorder.registered,
        compiled=compiled,
        policy=policy,
        trainable=[layer.trainable for layer in model._flatten_layers()],
        float32_outputs=float32_outputs,
    )


def build(blueprint: Blueprint) -> Any:
    """Build the model without its weights, under the global policy, RematScope and distribution of this process."""
    with warnings.catch_warnings(), serialization_lib.ObjectSharingScope():
        warnings.simplefilter("ignore")  # Keras warns about layers that the graph builds later
        return _deserialized(blueprint.config, blueprint)


def copy_trainable_flags(model: Any, blueprint: Blueprint) -> None:
    """Freeze the layers that are frozen in the live model; a config does not freeze the layers within a layer."""
    for layer, trainable in zip(model._flatten_layers(), blueprint.trainable, strict=False):
        if layer.trainable != trainable:
            layer.trainable = trainable


def compile_as_recorded(model: Any, blueprint: Blueprint) -> None:
    """Compile a built model with the live model's arguments and a new optimizer."""
    serialized = {"optimizer", "metrics", "weighted_metrics"}
    model.compile(
        **{
            name: _deserialized(value, blueprint) if name in serialized else value
            for name, value in blueprint.compiled.items()
        }
    )


def main_policy(model: Any) -> str:
    """Return the dtype policy of most layers with weights; the global policy if no layer has weights."""
    policies = Counter(layer.dtype_policy.name for layer in weighted_layers(model))
    return str(policies.most_common(1)[0][0]) if policies else str(keras.config.dtype_policy().name)


def weighted_layers(model: Any) -> list[Any]:
    """Return the layers that have weights of their own."""
    return [layer for layer in model_facts.layers_of(model) if layer.weights and not layer._layers]


def output_layers(model: Any) -> list[Any]:
    """Return the layers whose outputs are the model's outputs, including the layers within them."""
    if isinstance(model, keras.Sequential):
        found = list(_with_inner_layers(model.layers[-1])) if model.layers else []
    elif isinstance(model, Functional):
        found = [layer for tensor in model.outputs for layer in _producers(tensor)]
    else:
        found = []
    return list({id(layer): layer for layer in found}.values())


def _producers(tensor: Any) -> Iterable[Any]:
    """Yield the layers that produce a symbolic tensor, also through operations that are not layers."""
    operation, node_index, _ = tensor._keras_history
    if isinstance(operation, keras.Layer):
        yield from _with_inner_layers(operation)
        return
    for source in operation._inbound_nodes[node_index].input_tensors:
        yield from _producers(source)


def _with_inner_layers(layer: Any) -> Iterable[Any]:
    if isinstance(layer, keras.Sequential | Functional):
        yield from output_layers(layer)
    elif not isinstance(layer, keras.layers.InputLayer):
        yield from layer._flatten_layers()


def _within(layer: Any, others: Iterable[Any]) -> bool:
    return any(layer is not other and layer in other._flatten_layers(include_self=False) for other in others)


def _compile_arguments(model: Any) -> CompileArguments:
    given = model._compile_config.config
    optimizer, scaled = model.optimizer, isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled and not isinstance(given["optimizer"], keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # `compile` has added the wrapper, and adds it again under mixed_float16
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
    """Return "auto" if it has the same effect here, because its effect on another backend may differ."""
    as_auto = not model.run_eagerly and model.jit_compile == model._resolve_auto_jit_compile()
    return "auto" if as_auto else model.jit_compile


def _without_compiling(config: Any) -> Any:
    """Remove the compile configs of a model and of the models within it; `compile` is called separately."""
    if isinstance(config, dict):
        return {key: _without_compiling(value) for key, value in config.items() if key != "compile_config"}
    if isinstance(config, list | tuple):
        return type(config)(_without_compiling(value) for value in config)
    return config


def _deserialized(config: Any, blueprint: Blueprint) -> Any:
    # `from_config` methods modify their configs.
    return serialization_lib.deserialize_keras_object(
        copy.deepcopy(config), custom_objects=blueprint.custom, safe_mode=False
    )
