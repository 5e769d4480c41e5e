"""Reads the global Keras settings under which a live model was built, and sets them again for a rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import keras

from autoplan.errors import SourceError
from autoplan.runtime import backends, model_facts
from autoplan.runtime.apply import set_attention
from autoplan.runtime.live_models.keras_serialization import global_policy
from cost_models.config import AttentionMode

ADVICE = "pass a function that builds and compiles the model"


class RematSettings(NamedTuple):
    """Arguments of the `keras.RematScope` that a layer was built in."""

    mode: str
    output_size_threshold: int
    layer_names: list[str]


@dataclass(frozen=True)
class BuildSettings:
    """Global settings of the process in which the live model was built.

    remat     the RematScope of its layers; None if they were built in none, or in different ones
    devices   size of the data axis of its distribution
    attention  whether its attention layers may use a fused kernel
    """

    backend: str
    floatx: str
    epsilon: float
    image_data_format: str
    policy: str
    remat: RematSettings | None
    devices: int
    attention: AttentionMode


def read_settings(model: Any) -> BuildSettings:
    """Return the settings of this process and of the model's layers.

    SourceError for a distribution that a worker cannot set again.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None and not isinstance(distribution, keras.distribution.DataParallel):
        raise SourceError(
            f"a {type(distribution).__name__} is set in this process and cannot be set again in a worker process; "
            f"{ADVICE} and sets the distribution"
        )
    modes = remat_modes(model)
    return BuildSettings(
        backend=keras.backend.backend(),
        floatx=keras.config.floatx(),
        epsilon=keras.config.epsilon(),
        image_data_format=keras.config.image_data_format(),
        policy=keras.config.dtype_policy().name,
        remat=modes[0] if len(modes) == 1 else None,
        devices=1 if distribution is None else int(distribution.device_mesh.devices.size),
        attention=model_facts.attention_of(model),
    )


def apply_settings(settings: BuildSettings, policy: str) -> None:
    """Set what the live model's process had set, by the same calls that a script would make.

    policy  the global dtype policy
    """
    keras.config.set_floatx(settings.floatx)
    keras.config.set_epsilon(settings.epsilon)
    keras.config.set_image_data_format(settings.image_data_format)
    keras.config.set_dtype_policy(policy)
    if settings.remat is not None:
        remat_scope(settings.remat).__enter__()
    if settings.attention is AttentionMode.UNFUSED:
        set_attention(settings.attention)
    if settings.devices > 1:
        keras.distribution.set_distribution(backends.get(settings.backend).data_parallel(settings.devices))


@contextmanager
def building_like(settings: BuildSettings, policy: str) -> Iterator[None]:
    """Build under the live model's settings; in host memory if the live model is on one device."""
    with ExitStack() as stack:
        stack.enter_context(global_policy(policy))
        if settings.remat is not None:
            stack.enter_context(remat_scope(settings.remat))
        stack.callback(set_attention, model_facts.attention_setting())
        set_attention(settings.attention)
        if settings.devices == 1 and has_accelerator(settings):
            stack.enter_context(keras.device("cpu" if settings.backend == "torch" else "cpu:0"))
        yield


def has_accelerator(settings: BuildSettings) -> bool:
    """Return whether the first device reports memory of its own."""
    return backends.get(settings.backend).devices()[2] is not None


def remat_modes(model: Any) -> list[RematSettings | None]:
    """Return the distinct RematScopes that the model's layers were built in; None for layers built in none."""
    modes: list[RematSettings | None] = []
    for layer in model_facts.layers_of(model):
        mode = getattr(layer, "_remat_mode", None)
        settings = None if mode is None or mode.mode is None else RematSettings(mode[0], mode[1], list(mode[2]))
        if settings not in modes and not isinstance(layer, keras.layers.InputLayer):
            modes.append(settings)
    return modes


def remat_scope(remat: RematSettings) -> AbstractContextManager[Any]:
    """Return a RematScope with these settings."""
    return cast("AbstractContextManager[Any]", keras.RematScope(**remat._asdict()))
