"""What a model holds besides its code: variables, slots, lookup tables, seeds; taken out and given to another one.

Layers hand their own variables over by the methods that Keras saves and loads models with, so a layer that keeps them
in a way of its own, or learns more than variables, is understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np

from autoplan.runtime.optimizers import innermost

Values = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class State:
    """Copies, layer by layer in the order of `_flatten_layers`.

    layers      own variables of each layer, under the names that it saves them by
    assets      files of each layer that has some (lookup tables), by their relative paths
    seeds       states of the seed generators
    optimizer   variables of the innermost optimizer; None where it is not built
    loss_scale  variables of the LossScaleOptimizer around it
    """

    layers: list[dict[str, np.ndarray[Any, Any]]]
    assets: list[dict[str, bytes]]
    seeds: Values
    optimizer: Values | None
    loss_scale: Values


def take(model: Any) -> State:
    """Copy what a model holds. Nothing of the model changes."""
    layers = model._flatten_layers()
    optimizer = getattr(model, "optimizer", None)
    built = optimizer is not None and innermost(optimizer).built
    return State(
        layers=[_own_variables(layer) for layer in layers],
        assets=[_assets(layer) for layer in layers],
        seeds=[_copied(generator.state) for generator in _seed_generators(model)],
        optimizer=[_copied(variable) for variable in innermost(optimizer).variables] if built else None,
        loss_scale=[_copied(variable) for variable in _scaling(optimizer)] if built else [],
    )


def give(model: Any, state: State, *, seeds: bool) -> None:
    """Fill a model of the same layers, and its optimizer where the slots have the same shapes.

    seeds  also the states of its seed generators: the same dropout as the other model would have drawn

    ValueError where its layers, or a layer's variables, are not those that the state was taken from.
    """
    layers = model._flatten_layers()
    if len(layers) != len(state.layers):
        raise ValueError(f"it has {len(layers)} layers, and the state is of {len(state.layers)}")
    for layer, values, assets in zip(layers, state.layers, state.assets, strict=True):
        if values:
            layer.load_own_variables(dict(values))
        if assets:
            _load_assets(layer, assets)
    if seeds:
        _assign([generator.state for generator in _seed_generators(model)], state.seeds)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or state.optimizer is None:
        return
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    _assign(innermost(optimizer).variables, state.optimizer)
    _assign(_scaling(optimizer), state.loss_scale)


def _own_variables(layer: Any) -> dict[str, np.ndarray[Any, Any]]:
    store: dict[str, Any] = {}
    if layer.built:
        layer.save_own_variables(store)
    return {name: _copied(value) for name, value in store.items()}


def _copied(value: Any) -> np.ndarray[Any, Any]:
    """A copy: a view would share memory that a training step gives away."""
    return np.array(keras.ops.convert_to_numpy(value), copy=True)


def _assign(variables: list[Any], values: Values) -> None:
    if len(variables) != len(values):
        return
    for variable, value in zip(variables, values, strict=True):
        if tuple(variable.shape) == value.shape:
            variable.assign(value)


def _seed_generators(model: Any) -> list[Any]:
    return [generator for layer in model._flatten_layers() for generator in layer._seed_generators]


def _scaling(optimizer: Any) -> list[Any]:
    """The variables of a LossScaleOptimizer that are not its inner optimizer's."""
    return list(optimizer._variables) if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else []


def _assets(layer: Any) -> dict[str, bytes]:
    if not (layer.built and hasattr(layer, "save_assets")):
        return {}
    with TemporaryDirectory(prefix="autoplan-") as folder:
        layer.save_assets(folder)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _load_assets(layer: Any, assets: dict[str, bytes]) -> None:
    with TemporaryDirectory(prefix="autoplan-") as folder:
        for name, content in assets.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        layer.load_assets(folder)
