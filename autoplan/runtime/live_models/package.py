"""Packs a live, compiled `keras.Model` and its data as a `SourceSpec` for worker processes, and unpacks it there.

A Functional or Sequential model is packed as a blueprint with its weights, and rebuilt under each configuration. A
subclassed model, or a model whose config does not give an equivalent model, is pickled as it is. Then the knobs that
must be set before building cannot be tuned.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from keras.src.models.functional import Functional

from autoplan.errors import OutputError, SourceError
from autoplan.formatting import first_line
from autoplan.plan import knobs
from autoplan.runtime import model_facts
from autoplan.runtime.live_models import blueprints, equivalence, object_pickle, state
from autoplan.runtime.live_models.blueprints import Blueprint
from autoplan.runtime.live_models.build_settings import (
    ADVICE,
    BuildSettings,
    apply_settings,
    building_like,
    has_accelerator,
    read_settings,
    remat_modes,
)
from autoplan.runtime.live_models.state import State
from autoplan.runtime.model_facts import FLASH_ATTENTION
from autoplan.sources import pickling
from autoplan.sources.source import PROCESS_ALREADY_STARTED, SourceSpec


@dataclass(frozen=True)
class Package:
    """A live model for a worker: `blueprint` and `state`, or `model` itself."""

    settings: BuildSettings
    blueprint: Blueprint | None
    state: State | None
    model: Any
    data: Any


def pack(model: Any, data: Any = None) -> SourceSpec:
    """Pack a live model with its data for other processes. The model does not change.

    data  None for synthetic batches, data as `fit` accepts them (arrays, a tuple or dict of its arguments), or a
          function without arguments that returns such data

    SourceError if the model is not compiled, has a distribution that a worker cannot set, or cannot be pickled;
    OutputError if arrays cannot be written.
    """
    _check_compiled(model)
    pickling.check_data(data)
    settings = read_settings(model)
    blueprint, why_not = verified_blueprint(model, settings, _inputs_of(data))
    if blueprint is None and settings.devices > 1:
        raise SourceError(f"{model.name} is distributed over {settings.devices} devices, but {why_not}; {ADVICE}")
    package = Package(
        settings,
        blueprint,
        None if blueprint is None else state.capture(model),
        model if blueprint is None else None,
        data,
    )
    return SourceSpec(
        kind="instance",
        path=model.name,
        payload=_payload(package, model),
        sha256=_fingerprint(package, model),
        directory=str(Path.cwd()),
        held=_held(model, blueprint, why_not),
        notes=_notes(settings, blueprint),
    )


def unpack(payload: str) -> tuple[Any, Any]:
    """Unpack the model and its data in a worker, before anything else runs there.

    Applies the global settings of the live model's process by the same calls that a script would make, so that the
    settings of a candidate override them.

    SourceError if the model cannot be rebuilt here.
    """
    try:
        package: Package = object_pickle.loads(base64.b64decode(payload))
    except Exception as error:
        raise SourceError(f"the live model cannot be unpickled in a worker process ({error}); {ADVICE}") from error
    running = keras.backend.backend()
    if package.blueprint is None and package.settings.backend != running:
        raise SourceError(
            f"the live model was built on {package.settings.backend} and cannot run on {running}; {ADVICE}"
        )
    try:
        apply_settings(
            package.settings, package.settings.policy if package.blueprint is None else package.blueprint.policy
        )
        if package.blueprint is None or package.state is None:
            return package.model, package.data
        for name, value in package.blueprint.registered.items():
            keras.saving.get_custom_objects()[name] = value
        return rebuild(package.blueprint, package.state, seeds=False), package.data
    except Exception as error:
        raise SourceError(f"the live model cannot be rebuilt ({type(error).__name__}: {error}); {ADVICE}") from error


def rebuild(blueprint: Blueprint, values: State, *, seeds: bool) -> Any:
    """Build a compiled model with the live model's state, under the present global policy, scopes and distribution."""
    model = blueprints.build(blueprint)
    blueprints.copy_trainable_flags(model, blueprint)
    blueprints.compile_as_recorded(model, blueprint)
    state.restore(model, values, seeds=seeds)
    return model


def verified_blueprint(model: Any, settings: BuildSettings, x: Any = None) -> tuple[Blueprint | None, str]:
    """Return a blueprint that has been verified to give an equivalent model, or None with the reason.

    x  the inputs of its data, if they are arrays
    """
    if not isinstance(model, keras.Sequential | Functional):
        return None, f"{type(model).__name__} is a subclassed model, whose __init__ cannot be called again"
    why_not = _own_compile(model) or _mixed_remat(model) or _own_attention(model)
    if why_not:
        return None, why_not
    try:
        with equivalence.preserved_global_state():
            blueprint = blueprints.record(model)
            with building_like(settings, blueprint.policy):
                again = rebuild(blueprint, state.capture(model), seeds=True)
            difference = equivalence.first_difference(model, again, x)
    except Exception as error:  # noqa: BLE001 -- a user's get_config and __init__ may raise anything
        return None, f"it cannot be rebuilt from its config ({type(error).__name__}: {_first_line(error)})"
    if difference is not None:
        return None, f"rebuilt from its config, {difference}"
    return blueprint, ""


def _check_compiled(model: Any) -> None:
    if not model.compiled:
        raise SourceError(
            f"the model {model.name} is not compiled; call model.compile(optimizer=..., loss=...) before tuning it"
        )


def _own_compile(model: Any) -> str:
    if type(model).compile is keras.Model.compile:
        return ""
    return f"{type(model).__name__} overrides compile(), so the arguments of Keras's compile are not known"


def _mixed_remat(model: Any) -> str:
    return "its layers were built under different RematScopes" if len(remat_modes(model)) > 1 else ""


def _own_attention(model: Any) -> str:
    """Return that attention layers have settings of their own, which Keras does not write into a config."""
    kept = {getattr(one, FLASH_ATTENTION) for one in model_facts.layers_of(model) if hasattr(one, FLASH_ATTENTION)}
    if len(kept) > 1 or True in kept:
        return "its attention layers have flash_attention settings of their own, which their configs do not contain"
    return ""


def _inputs_of(data: Any) -> Any:
    """Return x of the data if it consists of arrays; else None."""
    x = data.get("x") if isinstance(data, dict) and "x" in data else data[0] if isinstance(data, tuple) else data
    leaves = keras.tree.flatten(x)
    are_arrays = bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves)
    return x if are_arrays else None


def _held(model: Any, blueprint: Blueprint | None, why_not: str) -> dict[str, str]:
    """Return the knobs that cannot be tuned, with the reason and a remedy."""
    begun = dict.fromkeys(knobs.process_fields(), PROCESS_ALREADY_STARTED)
    if blueprint is None:
        return begun | dict.fromkeys(knobs.build_fields(), f"{why_not}; to tune them, {ADVICE}")
    outputs = [layer for layer in blueprints.output_layers(model) if layer.name in blueprint.float32_outputs]
    unchanged = {id(one) for layer in outputs for one in layer._flatten_layers()}
    following = [layer for layer in blueprints.weighted_layers(model) if layer.dtype_policy.name == blueprint.policy]
    if all(id(layer) in unchanged for layer in following):
        reason = "its layers with weights are output layers, which stay float32, or have their own dtype policies"
        return begun | {"precision": f"{reason}; to change their precision, {ADVICE}"}
    return begun


def _notes(settings: BuildSettings, blueprint: Blueprint | None) -> list[str]:
    notes = []
    if blueprint is not None:
        names = ", ".join(blueprint.float32_outputs)
        outputs = f"; output layers stay float32 ({names})" if names else ""
        notes.append(
            "each trial rebuilds the live model from its config, with its weights; layers with the dtype policy "
            f"{blueprint.policy} are assumed to follow the global policy, because a config does not distinguish "
            f"explicit from inherited policies{outputs}"
        )
    if has_accelerator(settings):
        notes.append(
            "this process held accelerator memory while the trials ran; pass a function that builds the model to leave "
            "all memory to the trials"
        )
    return notes


def _payload(package: Package, model: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return base64.b64encode(object_pickle.dumps(package)[0]).decode("ascii")
    except OSError as error:
        raise OutputError(
            f"the weights and data could not be written for the workers ({error}); free disk space, or set TMPDIR to "
            "another folder"
        ) from None
    except Exception as error:  # noqa: BLE001 -- pickling an object may raise anything
        raise SourceError(_why_not_sent(package, model, error)) from None


def _why_not_sent(package: Package, model: Any, error: Exception) -> str:
    try:
        object_pickle.dumps(package.data)
    except Exception as of_data:  # noqa: BLE001 -- as above
        return pickling.why_data_not_sent(package.data, of_data)
    culprit = object_pickle.first_unpicklable(model)
    named = f": {culprit}" if culprit else ""
    return f"the live model cannot be sent to worker processes ({_first_line(error)}){named}; {ADVICE}"


def _fingerprint(package: Package, model: Any) -> str:
    """Return a hash of the model, its code and its data, which is equal in every process; weights do not count."""
    described = json.dumps(_described(package, model), sort_keys=True, default=lambda value: type(value).__name__)
    digest = hashlib.sha256(described.encode())
    for kind in _own_classes(model):
        try:
            digest.update(inspect.getsource(kind).encode())
        except (OSError, TypeError):  # a class that was typed into an interpreter
            digest.update(kind.__qualname__.encode())
    digest.update(pickling.content_of_data(package.data, object_pickle.GraphPickler))
    return digest.hexdigest()


def _described(package: Package, model: Any) -> Any:
    blueprint = package.blueprint
    if blueprint is not None:
        return [blueprint.policy, _without_identities(blueprint.config), _without_identities(blueprint.compiled)]
    layers = [(type(layer).__name__, layer.name) for layer in model._flatten_layers()]
    return [layers, model_facts.structure(model), type(model.optimizer).__name__]


def _without_identities(config: Any) -> Any:
    """Remove the addresses of shared objects from a config, because they differ between processes."""
    if isinstance(config, dict):
        return {key: _without_identities(value) for key, value in config.items() if key != "shared_object_id"}
    return [_without_identities(value) for value in config] if isinstance(config, list | tuple) else config


def _own_classes(model: Any) -> list[type[Any]]:
    """Return the distinct classes of the model and its layers that are not part of Keras, in order."""
    kinds = dict.fromkeys(type(layer) for layer in model._flatten_layers())
    return [kind for kind in kinds if kind.__module__.partition(".")[0] != "keras"]


def _first_line(error: Exception) -> str:
    """Return the first line of the innermost error: Keras wraps an error of a layer in an error of its model."""
    message = str(error).rpartition("Exception encountered: ")[2].strip()
    return first_line(message) or type(error).__name__
