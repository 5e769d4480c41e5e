"""Derives what a configuration's compiled program depends on: its key, compiler profile, updates and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.config import Affects, TrainConfig
from cost_models.errors import WorkloadError
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.workload.workload import Workload
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Schedule, Updates
from cost_models.xla.profile import Profile
from cost_models.xla.profiles.choice import compiler_profile


@dataclass(frozen=True)
class Origin:
    """Everything that a training step is traced with. Another origin needs another trace."""

    precision: str
    remat: str
    attention: str = "auto"

    @classmethod
    def of(cls, config: TrainConfig) -> Origin:
        return cls(config.precision.value, config.remat.mode.value, config.attention.value)

    @classmethod
    def of_workload(cls, workload: Workload) -> Origin:
        return cls(workload.precision, workload.remat, workload.attention)

    def __str__(self) -> str:
        unfused = "" if self.attention == "auto" else f" and attention {self.attention}"
        return f"{self.precision} with remat {self.remat}{unfused}"


@dataclass(frozen=True, order=True)
class Executor:
    """The software that turns operations into kernels: a backend, with or without its compiler."""

    backend: str
    jit_compile: bool

    @classmethod
    def of(cls, config: TrainConfig) -> Executor:
        return cls(config.backend, config.jit_compile)

    def __str__(self) -> str:
        return f"{self.backend} {'with' if self.jit_compile else 'without'} jit_compile"


def program_key(config: TrainConfig) -> tuple[Any, ...]:
    """Return the key that all configurations share whose compiled programs have the same operations.

    Batch, mesh and accumulation change sizes only. Other settings change how a process runs the
    program. Each field of TrainConfig says what it affects.
    """
    return config.key(Affects.PROGRAM)


def platform_of(config: TrainConfig, cluster: Cluster) -> TargetPlatform:
    """Return the platform as which the step of a configuration is traced.

    On the JAX backend it is the cluster's. Other backends choose kernels by rules of their own; their steps are traced
    on JAX as on a CPU, whose operations are those that Keras's layers spell out.
    """
    return TargetPlatform.of(cluster.chip) if config.backend == "jax" else HOST


def check_platform(workload: Workload, config: TrainConfig, cluster: Cluster) -> None:
    """Raise WorkloadError when Keras would trace another step on this cluster than the workload's."""
    platform = platform_of(config, cluster)
    for question, answer in workload.answers:
        if platform.answer(question) != answer:
            raise WorkloadError(
                f"the workload was traced for a device with {question}: {_yes_or_no(answer)}, so it does not describe "
                f"the step on a {platform}; trace it again"
            )


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"


def check(workload: Workload, config: TrainConfig) -> None:
    """Raise WorkloadError when the workload does not hold for this configuration."""
    if config.mesh.model > 1:
        raise WorkloadError(
            f"a mesh with model={config.mesh.model} is not yet estimated; use the data axis alone (model=1)"
        )
    check_origin(workload, config)


def check_origin(workload: Workload, config: TrainConfig) -> None:
    """Raise WorkloadError when the workload was made with another precision, rematerialization or batch."""
    traced, asked = vars(Origin.of_workload(workload)), vars(Origin.of(config))
    for name, value in traced.items():
        if value != asked[name]:
            raise WorkloadError(
                f"the workload was traced with {name} {value}, so it says nothing about {asked[name]}; trace it again"
            )
    workload.check_batch(config.batch.local)


def profile_for(config: TrainConfig, cluster: Cluster) -> Profile:
    """Return the compiler that turns this configuration into kernels on this cluster."""
    chip = cluster.chip
    return compiler_profile(chip.kind, config.jit_compile, config.backend, chip.compute_capability, chip.name)


def updates_of(config: TrainConfig) -> Updates:
    """Return when this configuration turns gradients into new weights."""
    if config.batch.accumulation > 1:
        return Updates.SELECTED
    return Updates.TOGETHER if config.mesh.data > 1 or not config.jit_compile else Updates.AT_ONCE


def schedule_of(workload: Workload, config: TrainConfig, cluster: Cluster) -> Schedule:
    """Return the schedule of kernels that this configuration runs."""
    return schedule(workload, profile_for(config, cluster), updates_of(config), config.batch.local)


def device_share(config: TrainConfig, cluster: Cluster) -> float:
    """Return the share of the chip's rates that one device has.

    Simulated devices are slices of one processor. A mesh that leaves some of them idle gets their share too.
    """
    return cluster.devices / config.mesh.devices if cluster.simulated else 1.0
