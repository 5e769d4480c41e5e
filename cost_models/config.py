"""`TrainConfig`: one complete configuration of a training; a new knob starts as a field here.

The keys of `TrainConfig.to_dict()` are the keys of plans, of `--format json`, of `--fix` and of code alike. A field is
written and read by its type, so a new setting is one new field; `affecting` says what changes with it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Flag, StrEnum, auto
from functools import cache
from typing import Any, cast

from cost_models.errors import ConfigError

BACKENDS_WITH_DISTRIBUTION = ("jax",)
"""Keras backends on which `keras.distribution` splits a batch over devices."""


class Affects(Flag):
    """The things that change with a setting. Configurations that agree in all settings of a flag share its thing.

    OPERATIONS  the operations of the training step: another trace is needed
    SIZES       the sizes of its arrays on a device, or the number of devices
    PROGRAM     the compiled program, apart from sizes
    MEMORY      the bytes that a device needs
    BUILD       global settings of Keras that must be made before the model is built
    PROCESS     the process: it must be set before the backend starts its threads
    """

    OPERATIONS = auto()
    SIZES = auto()
    PROGRAM = auto()
    MEMORY = auto()
    BUILD = auto()
    PROCESS = auto()


NOTHING = Affects(0)
UNDECLARED = Affects.PROGRAM | Affects.MEMORY
"""The effects assumed for a field without `affecting`."""


def affecting(affects: Affects, *, phrase: str = "", first: bool = False, late: bool = False) -> dict[str, Any]:
    """Return the metadata of a field of TrainConfig.

    affects  what changes with it
    phrase   how `describe` words a value other than the default, with `{value}` for the value; else `name value`
    first    whether its key comes before those of all other fields
    late     whether plans of the first version lack its key: it is written only with a value other than the default
    """
    return {"affects": affects, "phrase": phrase, "first": first, "late": late}


class Precision(StrEnum):
    """A Keras dtype policy. `OTHER` is a script's own mixture that no single policy names."""

    FLOAT32 = "float32"
    MIXED_BFLOAT16 = "mixed_bfloat16"
    MIXED_FLOAT16 = "mixed_float16"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    OTHER = "other"

    @property
    def compute_dtype(self) -> str:
        """The dtype of products and activations; float32 where the policy has no name."""
        name = self.value.removeprefix("mixed_")
        return "float32" if name == "other" else name

    @property
    def variable_dtype(self) -> str:
        """The dtype of weights and optimizer state."""
        return "float32" if self.value.startswith("mixed_") or self is Precision.OTHER else self.value

    def describe(self) -> str:
        """Return the name of the policy, for one-line descriptions."""
        return self.value


class RematMode(StrEnum):
    """Which activations are recomputed in the backward pass instead of stored (`keras.RematScope` modes)."""

    NONE = "none"
    ACTIVATIONS = "activations"
    FULL = "full"


class AttentionMode(StrEnum):
    """Whether Keras may compute attention with one fused kernel.

    AUTO     Keras chooses by platform, dtype and shapes (`keras.config.enable_flash_attention`, its default)
    UNFUSED  scores are kept in memory (`keras.config.disable_flash_attention`)
    """

    AUTO = "auto"
    UNFUSED = "unfused"

    def describe(self) -> str:
        """Return `unfused attention`, or ""."""
        return "unfused attention" if self is AttentionMode.UNFUSED else ""


@dataclass(frozen=True)
class Batch:
    """Batch sizes in samples.

    local        on one device, in one micro-step
    data         size of the mesh axis `data`
    accumulation micro-steps an update
    """

    local: int
    data: int = 1
    accumulation: int = 1

    def __post_init__(self) -> None:
        for name in ("local", "data", "accumulation"):
            if getattr(self, name) < 1:
                raise ConfigError(f"batch {name} is {getattr(self, name)}; expected a whole number of at least 1")

    @property
    def global_size(self) -> int:
        """Global batch, the `batch_size` of Keras's `fit`: local batch x data axis."""
        return self.local * self.data

    @property
    def effective(self) -> int:
        """Samples an update of the weights: global batch x accumulation."""
        return self.global_size * self.accumulation

    @classmethod
    def from_global(cls, global_size: int, *, data: int = 1, accumulation: int = 1) -> Batch:
        """Split a global batch over the data axis. ConfigError when it does not divide."""
        if global_size % data:
            raise ConfigError(
                f"a global batch of {global_size} does not divide over {data} devices on the data axis; "
                f"use a multiple of {data}, or a mesh whose data axis divides {global_size}"
            )
        return cls(local=global_size // data, data=data, accumulation=accumulation)

    @classmethod
    def from_dict(cls, sizes: Mapping[str, Any], *, data: int) -> Batch:
        """Read the sizes of a plan on a mesh with this data axis. ConfigError where they contradict each other."""
        batch = cls.from_global(sizes["global"], data=data, accumulation=sizes.get("accumulation", 1))
        for key, value in batch.to_dict().items():
            if sizes.get(key, value) != value:
                raise ConfigError(f"batch.{key} is {sizes[key]}, but the other batch sizes make it {value}")
        return batch

    def on(self, mesh: Mesh) -> Batch:
        """Return the same global batch and accumulation on another mesh. ConfigError when it does not divide."""
        return Batch.from_global(self.global_size, data=mesh.data, accumulation=self.accumulation)

    def to_dict(self) -> dict[str, int]:
        """Return the sizes under the keys of a plan: local, global, accumulation, effective."""
        return {
            "local": self.local,
            "global": self.global_size,
            "accumulation": self.accumulation,
            "effective": self.effective,
        }

    def describe(self) -> str:
        """Return the global batch, with the accumulation where there is one: `batch 16, accumulation 4`."""
        accumulated = f", accumulation {self.accumulation}" if self.accumulation > 1 else ""
        return f"batch {self.global_size}{accumulated}"


@dataclass(frozen=True)
class Mesh:
    """Devices on the axes `data` (batch split) and `model` (weights split)."""

    data: int = 1
    model: int = 1

    def __post_init__(self) -> None:
        if self.data < 1 or self.model < 1:
            raise ConfigError(f"mesh data={self.data},model={self.model}: every axis needs at least one device")

    @property
    def devices(self) -> int:
        return self.data * self.model

    def describe(self) -> str:
        """Return the axes with more than one device; "" on one device."""
        if self.devices == 1:
            return ""
        return f"mesh data={self.data}" + (f",model={self.model}" if self.model > 1 else "")


@dataclass(frozen=True)
class Layout:
    """How state is laid out over the mesh.

    shard_state  parameters, gradients and optimizer state are split over `data`
    """

    shard_state: bool = False

    def describe(self) -> str:
        """Return `sharded state`, or ""."""
        return "sharded state" if self.shard_state else ""


@dataclass(frozen=True)
class Remat:
    """Rematerialization, always a mapping so that later modes can carry arguments."""

    mode: RematMode = RematMode.NONE

    def describe(self) -> str:
        """Return `remat` and its mode, or ""."""
        return "" if self.mode is RematMode.NONE else f"remat {self.mode.value}"


_STEP = Affects.OPERATIONS | Affects.PROGRAM | Affects.MEMORY | Affects.BUILD


@dataclass(frozen=True)
class TrainConfig:
    """One complete way to run a training step.

    A frozen value, so it is a key in tables of trials. `batch.data` always equals `mesh.data`.

    keep_freed_memory   the process keeps memory that a micro-step frees, for the next micro-step
                        (`cost_models.time.page_faults`)
    """

    batch: Batch = field(metadata=affecting(Affects.SIZES | Affects.MEMORY))
    backend: str = field(
        default="jax", metadata=affecting(Affects.PROGRAM | Affects.MEMORY, phrase="{value}", first=True)
    )
    precision: Precision = field(default=Precision.FLOAT32, metadata=affecting(_STEP, first=True))
    mesh: Mesh = field(default_factory=Mesh, metadata=affecting(Affects.SIZES | Affects.MEMORY | Affects.BUILD))
    layout: Layout = field(default_factory=Layout, metadata=affecting(Affects.PROGRAM | Affects.MEMORY | Affects.BUILD))
    remat: Remat = field(default_factory=Remat, metadata=affecting(_STEP))
    attention: AttentionMode = field(default=AttentionMode.AUTO, metadata=affecting(_STEP, late=True))
    steps_per_execution: int = field(default=1, metadata=affecting(NOTHING))
    jit_compile: bool = field(default=True, metadata=affecting(Affects.PROGRAM | Affects.MEMORY))
    keep_freed_memory: bool = field(default=False, metadata=affecting(Affects.PROCESS))

    def __post_init__(self) -> None:
        if self.batch.data != self.mesh.data:
            raise ConfigError(
                f"the batch is split over {self.batch.data} devices but the mesh has data={self.mesh.data}; "
                "the two must agree"
            )
        if self.steps_per_execution < 1:
            raise ConfigError(f"steps_per_execution is {self.steps_per_execution}; expected at least 1")

    @classmethod
    def settings(cls) -> Mapping[str, Field[Any]]:
        """Return all fields by name, in the order of a plan."""
        this: Any = cls
        return _settings(this)

    @classmethod
    def default(cls, name: str) -> Any:
        """Return the default of a field that has one."""
        found = cls.settings()[name]
        return found.default_factory() if callable(found.default_factory) else found.default

    @classmethod
    def affects(cls, name: str) -> Affects:
        """Return what changes with a field."""
        found: Affects = cls.settings()[name].metadata.get("affects", UNDECLARED)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the keys of a plan, without late ones that have their default."""
        return {name: self[name] for name in self.settings() if not self._left_out(name)}

    def _left_out(self, name: str) -> bool:
        late = self.settings()[name].metadata.get("late", False)
        return bool(late and getattr(self, name) == self.default(name))

    def __getitem__(self, key: str) -> Any:
        """Return the plain value under a key of a plan, for programs that read `plan.config["precision"]`."""
        if key not in self.settings():
            raise KeyError(key)
        return _plain(getattr(self, key))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """Read what `to_dict` wrote. ConfigError names a missing or contradicting key."""
        types = typing.get_type_hints(cls)
        try:
            values = {
                name: _read(types[name], data[name]) for name in cls.settings() if name != "batch" and name in data
            }
            mesh = values.get("mesh", Mesh())
            return cls(batch=Batch.from_dict(data["batch"], data=mesh.data), **values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a configuration that cannot be read ({error}); expected the keys of a plan") from None

    def with_(self, **changes: Any) -> TrainConfig:
        """Return a copy with other values; a new mesh without a new batch splits the same global batch."""
        if "mesh" in changes and "batch" not in changes:
            changes["batch"] = self.batch.on(changes["mesh"])
        return replace(self, **changes)

    def key(self, affects: Affects) -> tuple[Any, ...]:
        """Return the values of all settings that affect this: equal for configurations that share it."""
        return tuple(getattr(self, name) for name in self.settings() if self.affects(name) & affects)

    def reduced_to(self, affects: Affects) -> TrainConfig:
        """Return a copy with every setting that does not affect this at its default."""
        defaults = {name: self.default(name) for name in self.settings() if not self.affects(name) & affects}
        return self.with_(**defaults)

    def describe(self) -> str:
        """Return one line for tables: what distinguishes two configurations. Defaults are left out, but for sizes."""
        return ", ".join(filter(None, (self._described(name) for name in self.settings())))

    def _described(self, name: str) -> str:
        value = getattr(self, name)
        if hasattr(value, "describe"):
            return str(value.describe())
        if value == self.default(name):
            return ""
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        return str(self.settings()[name].metadata.get("phrase") or f"{name} {{value}}").format(value=text)


@cache
def _settings(cls: Any) -> Mapping[str, Field[Any]]:
    ordered = sorted(fields(cls), key=lambda one: not one.metadata.get("first", False))
    return {one.name: one for one in ordered}


def _plain(value: Any) -> Any:
    """Return a value as plain text, numbers and mappings."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value.value if isinstance(value, StrEnum) else value


def _read(kind: Any, plain: Any) -> Any:
    """Return the value of this type that `_plain` wrote."""
    if is_dataclass(kind):
        types, make = typing.get_type_hints(kind), cast("Callable[..., Any]", kind)
        return make(**{name: _read(types[name], part) if name in types else part for name, part in plain.items()})
    return kind(plain) if isinstance(kind, type) and issubclass(kind, StrEnum) else plain
