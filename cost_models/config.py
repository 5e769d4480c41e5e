"""TrainConfig: everything that may be tuned, as one frozen value.

The keys of `TrainConfig.to_dict()` are the keys of plans, of `--format json`, of `--fix` and of code alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cost_models.errors import ConfigError

BACKENDS_WITH_DISTRIBUTION = ("jax",)
"""Keras backends on which `keras.distribution` splits a batch over devices."""


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


class RematMode(StrEnum):
    """What is recomputed in the backward pass instead of kept (`keras.RematScope` modes)."""

    NONE = "none"
    ACTIVATIONS = "activations"
    FULL = "full"


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
        """What Keras's `fit` calls `batch_size`: local batch x data axis."""
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

    def to_dict(self) -> dict[str, int]:
        """The keys of a plan: local, global, accumulation, effective."""
        return {
            "local": self.local,
            "global": self.global_size,
            "accumulation": self.accumulation,
            "effective": self.effective,
        }


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

    def to_dict(self) -> dict[str, int]:
        return {"data": self.data, "model": self.model}


@dataclass(frozen=True)
class Layout:
    """How state lies over the mesh. `shard_state`: parameters, gradients and optimizer state split over `data`."""

    shard_state: bool = False

    def to_dict(self) -> dict[str, bool]:
        return {"shard_state": self.shard_state}


@dataclass(frozen=True)
class Remat:
    """Rematerialization, always a mapping so that later modes can carry arguments."""

    mode: RematMode = RematMode.NONE

    def to_dict(self) -> dict[str, str]:
        return {"mode": self.mode.value}


@dataclass(frozen=True)
class TrainConfig:
    """One complete way to run a training step.

    A frozen value, so it is a key in tables of what was tried. `batch.data` always equals `mesh.data`.
    `keep_freed_memory`: the process keeps memory that a micro-step frees, for the next one
    (`cost_models.time.page_faults`).
    """

    batch: Batch
    backend: str = "jax"
    precision: Precision = Precision.FLOAT32
    mesh: Mesh = field(default_factory=Mesh)
    layout: Layout = field(default_factory=Layout)
    remat: Remat = field(default_factory=Remat)
    steps_per_execution: int = 1
    jit_compile: bool = True
    keep_freed_memory: bool = False

    def __post_init__(self) -> None:
        if self.batch.data != self.mesh.data:
            raise ConfigError(
                f"the batch is split over {self.batch.data} devices but the mesh has data={self.mesh.data}; "
                "the two must agree"
            )
        if self.steps_per_execution < 1:
            raise ConfigError(f"steps_per_execution is {self.steps_per_execution}; expected at least 1")

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the keys of a plan."""
        return {
            "backend": self.backend,
            "precision": self.precision.value,
            "batch": self.batch.to_dict(),
            "mesh": self.mesh.to_dict(),
            "layout": self.layout.to_dict(),
            "remat": self.remat.to_dict(),
            "steps_per_execution": self.steps_per_execution,
            "jit_compile": self.jit_compile,
            "keep_freed_memory": self.keep_freed_memory,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`. ConfigError names a missing or contradicting key."""
        try:
            mesh = Mesh(**data.get("mesh", {}))
            sizes = data["batch"]
            batch = Batch.from_global(sizes["global"], data=mesh.data, accumulation=sizes.get("accumulation", 1))
            config = cls(
                batch=batch,
                backend=data.get("backend", "jax"),
                precision=Precision(data.get("precision", "float32")),
                mesh=mesh,
                layout=Layout(**data.get("layout", {})),
                remat=Remat(RematMode(data.get("remat", {}).get("mode", "none"))),
                steps_per_execution=data.get("steps_per_execution", 1),
                jit_compile=data.get("jit_compile", True),
                keep_freed_memory=data.get("keep_freed_memory", False),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a configuration that cannot be read ({error}); expected the keys of a plan") from None
        for key, value in batch.to_dict().items():
            if sizes.get(key, value) != value:
                raise ConfigError(f"batch.{key} is {sizes[key]}, but the other batch sizes make it {value}")
        return config

    def with_(self, **changes: Any) -> TrainConfig:
        """A copy with other values; setting `mesh` re-splits the same global batch."""
        if "mesh" in changes and "batch" not in changes:
            changes["batch"] = Batch.from_global(
                self.batch.global_size, data=changes["mesh"].data, accumulation=self.batch.accumulation
            )
        return replace(self, **changes)

    def describe(self) -> str:
        """One line for tables: only what a reader needs to tell two configurations apart; JAX is not named."""
        parts = [self.precision.value, f"batch {self.batch.global_size}"]
        if self.batch.accumulation > 1:
            parts[-1] += f"x{self.batch.accumulation}"
        if self.mesh.devices > 1:
            parts.append(f"mesh data={self.mesh.data}" + (f",model={self.mesh.model}" if self.mesh.model > 1 else ""))
        if self.layout.shard_state:
            parts.append("sharded state")
        if self.remat.mode is not RematMode.NONE:
            parts.append(f"remat {self.remat.mode.value}")
        if self.steps_per_execution > 1:
            parts.append(f"steps_per_execution {self.steps_per_execution}")
        if not self.jit_compile:
            parts.append("jit_compile off")
        if self.keep_freed_memory:
            parts.append("freed memory kept")
        if self.backend != "jax":
            parts.insert(0, self.backend)
        return ", ".join(parts)
