"""Copies the state of a model to another one: variables, optimizer slots, lookup tables, seeds.

Layers export and import their state with the methods that Keras uses to save and load models, so layers with their own
way of saving are supported.
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
    """A copy of a model's state; lists by layer are in the order of `_flatten_layers`.

    layers      each layer's own variables, by the names under which it saves them
    assets      each layer's files (lookup tables), by relative path
    seeds       states of the seed generators
    optimizer   variables of the innermost optimizer; None if it is not built
    loss_scale  variables of the LossScaleOptimizer around it
    """

    layers: list[dict[str, np.ndarray[Any, Any]]]
    assets: list[dict[str, bytes]]
    seeds: Values
    optimizer: Values | None
    loss_scale: Values


def capture(model: Any) -> State:
    """Return a copy of a model's state. The model does not change."""
    layers = model._flatten_layers()
    optimizer = getattr(model, "optimizer", None)
    built = optimizer is not None and innermost(optimizer).built
    return State(
        layers=[_own_variables(layer) for layer in layers],
        assets=[_assets(layer) for layer in layers],
        seeds=[_copied(generator.state) for generator in _seed_generators(model)],
        optimizer=[_copied(variable) for variable in innermost(optimizer).variables] if built else None,
        loss_scale=[_copied(variable) for variable in _loss_scale_variables(optimizer)] if built else [],
    )


def restore(model: Any, state: State, *, seeds: bool) -> None:
    """Set the state of a model with the same layers, and the optimizer slots that have the same shapes.

    seeds  also set the states of its seed generators, so that it draws the same dropout as the other model

    ValueError if its layers, or the variables of a layer, differ from those of the captured model.
    """
    layers = model._flatten_layers()
    if len(layers) != len(state.layers):
        raise ValueError(f"it has {len(layers)} layers, but the state has {len(state.layers)}")
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
    _assign(_loss_scale_variables(optimizer), state.loss_scale)


def _own_variables(layer: Any) -> dict[str, np.ndarray[Any, Any]]:
    store: dict[str, object] = {}
    if layer.built:
        layer.save_own_variables(store)
    return {name: _copied(value) for name, value in store.items()}


def _copied(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy, because a view would share memory that a training step donates."""
    return np.array(keras.ops.convert_to_numpy(value), copy=True)


def _assign(variables: list[Any], values: Values) -> None:
    if len(variables) != len(values):
        return
    for variable, value in zip(variables, values, strict=True):
        if tuple(variable.shape) == value.shape:
            variable.assign(value)


def _seed_generators(model: Any) -> list[Any]:
    return [generator for layer in model._flatten_layers() for generator in layer._seed_generators]


def _loss_scale_variables(optimizer: Any) -> list[Any]:
    """Return the variables of a LossScaleOptimizer without those of its inner optimizer."""
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
