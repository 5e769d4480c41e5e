"""A live, compiled `keras.Model` as a source: what travels to worker processes, and what is opened there.

A Functional or Sequential model travels as a blueprint with its weights, and is built again under each configuration. A
subclassed model, or one whose config does not give the same model again, travels as it is; then what must be set before
building stays as it is.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from keras.src.models.functional import Functional

from autoplan.errors import OutputError, SourceError
from autoplan.runtime import backends, model_facts
from autoplan.runtime.apply import PROCESS_WIDE
from autoplan.runtime.live_models import blueprints, equivalence, object_pickle, state
from autoplan.runtime.live_models.blueprints import Blueprint
from autoplan.runtime.live_models.keras_serialization import global_policy
from autoplan.runtime.live_models.state import State
from autoplan.sources import pickling
from autoplan.sources.source import BEGUN, SourceSpec

ADVICE = "pass a function that builds and compiles the model"


@dataclass(frozen=True)
class Settings:
    """What was set in the live model's process when it was built.

    remat     (mode, output_size_threshold, layer_names) of its layers; None where they have none
    devices   on the data axis of its distribution
    """

    backend: str
    floatx: str
    epsilon: float
    image_data_format: str
    policy: str
    remat: tuple[Any, ...] | None
    devices: int


@dataclass(frozen=True)
class Package:
    """Everything that a worker needs: `blueprint` and `state`, or `model` itself."""

    settings: Settings
    blueprint: Blueprint | None
    state: State | None
    model: Any
    data: Any


def is_live(value: Any) -> bool:
    """Whether this is a model, and no class or function that makes one."""
    return isinstance(value, keras.Model)


def pack(model: Any, data: Any = None) -> SourceSpec:
    """A live model with its data, for processes that do not have it. The model stays as it is.

    data  None (synthetic batches), what `fit` takes (arrays, a tuple or dict of its arguments), or a function without
          arguments that returns that

    SourceError for a model that is not compiled, that is split over devices by hand, or that cannot be sent;
    OutputError when arrays cannot be written.
    """
    _check_compiled(model)
    pickling.check_data(data)
    settings = settings_of(model)
    blueprint, why_not = drawn(model, settings, _inputs_of(data))
    if blueprint is None and settings.devices > 1:
        raise SourceError(f"{model.name} lies on {settings.devices} devices, and {why_not}; {ADVICE}")
    package = Package(
        settings,
        blueprint,
        None if blueprint is None else state.take(model),
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


def opened(payload: str) -> tuple[Any, Any]:
    """(model, data) in a worker, which has not been asked for anything else before.

    Sets what the live model's process had set, by the same calls that a script would make: a candidate's own settings
    stand against them. SourceError when the model cannot be made here.
    """
    try:
        package: Package = object_pickle.loads(base64.b64decode(payload))
    except Exception as error:
        raise SourceError(f"the live model cannot be opened in a worker process ({error}); {ADVICE}") from error
    running = keras.backend.backend()
    if package.blueprint is None and package.settings.backend != running:
        raise SourceError(f"the live model is of {package.settings.backend} and cannot be run on {running}; {ADVICE}")
    try:
        _enter(package.settings, package.settings.policy if package.blueprint is None else package.blueprint.policy)
        if package.blueprint is None or package.state is None:
            return package.model, package.data
        for name, value in package.blueprint.registered.items():
            keras.saving.get_custom_objects()[name] = value
        return made(package.blueprint, package.state, seeds=False), package.data
    except Exception as error:
        raise SourceError(f"the live model cannot be made again ({type(error).__name__}: {error}); {ADVICE}") from error


def made(blueprint: Blueprint, values: State, *, seeds: bool) -> Any:
    """A compiled model with the state of the live one, under the global policy, scopes and distribution of now."""
    model = blueprints.build(blueprint)
    blueprints.freeze_alike(model, blueprint)
    blueprints.compile_as_recorded(model, blueprint)
    state.give(model, values, seeds=seeds)
    return model


def drawn(model: Any, settings: Settings, x: Any = None) -> tuple[Blueprint | None, str]:
    """A blueprint that has been shown to give this model again, or None with the reason.

    x  the inputs of its data, where they can be looked at
    """
    if not isinstance(model, keras.Sequential | Functional):
        return None, f"{type(model).__name__} is a subclassed model, whose __init__ cannot be run again"
    why_not = _own_compile(model) or _mixed_remat(model)
    if why_not:
        return None, why_not
    try:
        with equivalence.undisturbed():
            blueprint = blueprints.record(model)
            with _like(settings, blueprint.policy):
                again = made(blueprint, state.take(model), seeds=True)
            difference = equivalence.first_difference(model, again, x)
    except Exception as error:  # noqa: BLE001 -- a user's get_config and __init__ raise what they like
        return None, f"it cannot be made again from its config ({type(error).__name__}: {_first_line(error)})"
    if difference is not None:
        return None, f"made again from its config, {difference}"
    return blueprint, ""


def settings_of(model: Any) -> Settings:
    """SourceError for a distribution that a worker cannot set again."""
    distribution = keras.distribution.distribution()
    if distribution is not None and not isinstance(distribution, keras.distribution.DataParallel):
        raise SourceError(
            f"a {type(distribution).__name__} is set in this process, which cannot be set again in a worker process; "
            f"{ADVICE} and sets the distribution"
        )
    modes = _remat_modes(model)
    return Settings(
        backend=keras.backend.backend(),
        floatx=keras.config.floatx(),
        epsilon=keras.config.epsilon(),
        image_data_format=keras.config.image_data_format(),
        policy=keras.config.dtype_policy().name,
        remat=modes[0] if len(modes) == 1 else None,
        devices=1 if distribution is None else _devices_of(distribution),
    )


def _check_compiled(model: Any) -> None:
    if not model.compiled:
        raise SourceError(
            f"the model {model.name} is not compiled; call model.compile(optimizer=..., loss=...) before tuning it"
        )


def _own_compile(model: Any) -> str:
    if type(model).compile is keras.Model.compile:
        return ""
    return f"{type(model).__name__} has a compile() of its own, whose arguments are not known"


def _mixed_remat(model: Any) -> str:
    return "its layers were built under different RematScopes" if len(_remat_modes(model)) > 1 else ""


def _remat_modes(model: Any) -> list[tuple[Any, ...] | None]:
    """The RematScopes that layers were built in, each once; None is none."""
    modes: list[tuple[Any, ...] | None] = []
    for layer in model_facts.layers_of(model):
        mode = getattr(layer, "_remat_mode", None)
        told = None if mode is None or mode.mode is None else (mode[0], mode[1], list(mode[2]))
        if told not in modes and not isinstance(layer, keras.layers.InputLayer):
            modes.append(told)
    return modes


def _devices_of(distribution: Any) -> int:
    return int(distribution.device_mesh.devices.size)


def _inputs_of(data: Any) -> Any:
    """x of the data, where it is arrays that can be looked at; else None."""
    x = data.get("x") if isinstance(data, dict) and "x" in data else data[0] if isinstance(data, tuple) else data
    leaves = keras.tree.flatten(x)
    whole = bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves)
    return x if whole else None


@contextmanager
def _like(settings: Settings, policy: str) -> Iterator[None]:
    """Build under what the live model was built under, in host memory where it lies on one device."""
    with ExitStack() as stack:
        stack.enter_context(global_policy(policy))
        if settings.remat is not None:
            stack.enter_context(remat_scope(settings.remat))
        if settings.devices == 1 and _has_accelerator(settings):
            stack.enter_context(keras.device("cpu" if settings.backend == "torch" else "cpu:0"))
        yield


def _has_accelerator(settings: Settings) -> bool:
    """Whether the device tells of memory of its own."""
    return backends.get(settings.backend).devices()[2] is not None


def remat_scope(remat: tuple[Any, ...]) -> Any:
    """The RematScope that layers of these settings were built in."""
    mode, threshold, names = remat
    return keras.RematScope(mode=mode, output_size_threshold=threshold, layer_names=names)


def _enter(settings: Settings, policy: str) -> None:
    keras.config.set_floatx(settings.floatx)
    keras.config.set_epsilon(settings.epsilon)
    keras.config.set_image_data_format(settings.image_data_format)
    keras.config.set_dtype_policy(policy)
    if settings.remat is not None:
        remat_scope(settings.remat).__enter__()
    if settings.devices > 1:
        keras.distribution.set_distribution(backends.get(settings.backend).data_parallel(settings.devices))


def _held(model: Any, blueprint: Blueprint | None, why_not: str) -> dict[str, str]:
    """Knobs that cannot be turned, with the reason and what would help."""
    begun = {"keep_freed_memory": BEGUN}
    if blueprint is None:
        return begun | dict.fromkeys(PROCESS_WIDE, f"{why_not}; {ADVICE} to have them tuned")
    outputs = [layer for layer in blueprints.output_layers(model) if layer.name in blueprint.kept]
    kept = {id(one) for layer in outputs for one in layer._flatten_layers()}
    following = [layer for layer in blueprints.weighted_layers(model) if layer.dtype_policy.name == blueprint.policy]
    if all(id(layer) in kept for layer in following):
        reason = "its layers with weights are output layers, which stay float32, or have a dtype policy of their own"
        return begun | {"precision": f"{reason}; {ADVICE} to have other layers in it"}
    return begun


def _notes(settings: Settings, blueprint: Blueprint | None) -> list[str]:
    notes = []
    if blueprint is not None:
        kept = f", and output layers stay float32 ({', '.join(blueprint.kept)})" if blueprint.kept else ""
        notes.append(
            "the live model is built again from its config for each trial, with its weights: layers of the dtype "
            f"policy {blueprint.policy} are taken to follow the global one, since a config does not tell an explicit "
            f"policy from an inherited one{kept}"
        )
    if _has_accelerator(settings):
        notes.append(
            "this process kept its own hold on the accelerator's memory while trials ran beside it; a function that "
            "builds the model, called in workers alone, would leave all of it to them"
        )
    return notes


def _payload(package: Package, model: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return base64.b64encode(object_pickle.dumps(package)[0]).decode("ascii")
    except OSError as error:
        raise OutputError(
            f"the weights and data could not be written for the workers ({error}); free some space, or set TMPDIR to "
            "another folder"
        ) from None
    except Exception as error:  # noqa: BLE001 -- objects raise what they like when they are pickled
        raise SourceError(_why_not_sent(package, model, error)) from None


def _why_not_sent(package: Package, model: Any, error: Exception) -> str:
    try:
        object_pickle.dumps(package.data)
    except Exception as of_data:  # noqa: BLE001 -- as above
        return pickling.why_data_not_sent(package.data, of_data)
    culprit = object_pickle.first_that_cannot_travel(model)
    named = f": {culprit}" if culprit else ""
    return f"the live model cannot be sent to worker processes ({_first_line(error)}){named}; {ADVICE}"


def _fingerprint(package: Package, model: Any) -> str:
    """Of what the model is, its code and its data, the same in every process; weights are left out."""
    described = json.dumps(_described(package, model), sort_keys=True, default=lambda value: type(value).__name__)
    digest = hashlib.sha256(described.encode())
    for kind in _own_classes(model):
        try:
            digest.update(inspect.getsource(kind).encode())
        except (OSError, TypeError):  # typed into an interpreter
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
    """A config without the addresses of shared objects, which differ between processes."""
    if isinstance(config, dict):
        return {key: _without_identities(value) for key, value in config.items() if key != "shared_object_id"}
    return [_without_identities(value) for value in config] if isinstance(config, list | tuple) else config


def _own_classes(model: Any) -> list[type[Any]]:
    """Classes of the model and its layers that Keras does not ship, each once, in order."""
    kinds = dict.fromkeys(type(layer) for layer in model._flatten_layers())
    return [kind for kind in kinds if kind.__module__.partition(".")[0] != "keras"]


def _first_line(error: Exception) -> str:
    """Keras wraps an error of a layer in one of the model that holds it, with both configs: the innermost is told."""
    told = str(error).rpartition("Exception encountered: ")[2].strip()
    return next(iter(told.splitlines()), type(error).__name__)
