"""`Software`: how a software stack's kernels differ from those of Keras, the default, and the host's overhead.

Keras on the configuration's backend is the default. Other stacks differ in ways that `Software` names, so that their
published times can be compared with what `step_time` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.time.cost import Seconds
from cost_models.time.exchange import Exchange, XlaExchange
from cost_models.xla.profiles.choice import compiler_profile

LOOP_SECONDS = 1.2e-4
SECONDS_PER_VARIABLE = 3e-6
EAGER_SECONDS = 1.0e-4
"""The host's work beside the chip's `dispatch_seconds`: for a micro-step of `fit`, for each variable that it hands to
the program, and for an operation outside a compiled program, which is traced for its gradient and dispatched from
Python. A machine at hand has its own figures (`Chip.host_micro_step_seconds`).

Measured with Keras 3.15 and jax 0.10.2 on x86-64 server cores: 126 microseconds a micro-step with 4 variables, 435
with 98, 1,009 with 290; 93 to 120 microseconds an operation.
"""


@dataclass(frozen=True)
class BackendDispatch:
    """The host's work on a backend other than JAX: seconds a micro-step of `fit`, and an operation without a compiler.

    Operations are counted as JAX traces them. Measured with Keras 3.15, TensorFlow 2.21 and PyTorch 2.13 on x86-64
    server cores, batches of two: networks of 80 to 1,460 operations took 1.1 to 7.9 ms in a TensorFlow graph, and dense
    ones of 80 to 1,200 took 1.8 to 6.1 ms on PyTorch. Rough: trials correct it.
    """

    micro_step_seconds: float
    operation_seconds: float


_OFF_JAX = {
    "tensorflow": BackendDispatch(micro_step_seconds=1.0e-3, operation_seconds=4.0e-6),
    "torch": BackendDispatch(micro_step_seconds=1.3e-3, operation_seconds=1.0e-5),
}

_GAIN_FROM_GROUPS = frozenset({"tensorflow"})
"""Backends whose `steps_per_execution` spares the host work. JAX's is a loop in Python; PyTorch has none."""


class Kernels(StrEnum):
    """The origin of a step's kernels."""

    BACKEND = "backend"
    """The backend's compiler; without it, the kernels that the backend has."""
    LAYERS = "layers"
    """A library's kernel for each layer and pass, as PyTorch has them."""
    OPERATIONS = "operations"
    """Mostly a kernel for each operation, as TensorFlow 2 has them."""


@dataclass(frozen=True)
class OptimizerKernels:
    """An optimizer that runs once an update and without a compiler.

    passes   float32 values that are read and written for each parameter
    kernels  launches for each variable; 0 for optimizers that take many variables at once
    waits    Python waits for the device at every variable, so that launching takes its own time
    """

    passes: float
    kernels: int = 0
    waits: bool = False

    def seconds(self, parameters: float, variables: float, bytes_per_second: float, launch_seconds: float) -> float:
        """Return the seconds of one update of so many parameters in so many trainable variables."""
        moving = 4 * parameters * self.passes / bytes_per_second
        launches = variables * self.kernels
        if self.waits:
            return max(moving, launches * _OFF_JAX["torch"].operation_seconds)
        return moving + launches * launch_seconds


@dataclass(frozen=True)
class Software:
    """A software stack, as far as it changes times.

    kernels                the origin of the step's kernels
    biases_apart           libraries add biases in kernels of their own (PyTorch before 1.12)
    fused_attention        whether attention that is several traced operations runs as one kernel. A step that was
                           traced for its device has one operation where Keras chooses one kernel
    exact_float32          float32 GEMMs stay off TF32; None: as the backend decides
    nchw                   16-bit convolutions get channels first, and are transposed for matrix units
    memory_bound_slowdown  how many times as long kernels other than GEMMs move their bytes (older libraries)
    optimizer              the optimizer's own kernels; None: as traced
    updates_once           the optimizer runs once an update, each device on its shard of the state; else, as in Keras,
                           every micro-step works out new weights and chooses between these and the old ones
    exchange               how gradients are exchanged between devices
    without                names of rules that are switched off (see `studies/time_vs_published`)
    """

    kernels: Kernels = Kernels.BACKEND
    biases_apart: bool = False
    fused_attention: bool = False
    exact_float32: bool | None = None
    nchw: bool = False
    memory_bound_slowdown: float = 1.0
    optimizer: OptimizerKernels | None = None
    updates_once: bool = False
    exchange: Exchange = field(default_factory=XlaExchange)
    without: frozenset[str] = frozenset()

    def applies(self, rule: str) -> bool:
        """Return whether a rule is switched on."""
        return rule not in self.without


KERAS = Software()


def overhead_seconds(
    launches: Seconds,
    device_seconds: Seconds,
    config: TrainConfig,
    cluster: Cluster,
    *,
    variables: float,
    dispatches: float,
) -> Seconds:
    """Return the seconds of launches, and of the host's work as far as the device has to wait for it.

    device_seconds  of a micro-step on the device
    variables       that the host hands to the program
    dispatches      operations that run one by one without a compiler

    Numbers or arrays.
    """
    chip = cluster.chip
    launching = launches * chip.kernel_launch_seconds
    elsewhere = _OFF_JAX.get(config.backend)
    if elsewhere is not None:
        grouped = config.steps_per_execution if config.backend in _GAIN_FROM_GROUPS else 1
        operations = 0 if config.jit_compile else dispatches
        return launching + elsewhere.micro_step_seconds / grouped + operations * elsewhere.operation_seconds
    if not config.jit_compile:
        return launching + dispatches * (chip.dispatch_seconds + EAGER_SECONDS)
    loop, a_variable = chip.host_micro_step_seconds, chip.host_variable_seconds
    host = chip.dispatch_seconds + (LOOP_SECONDS if loop is None else loop)
    host += (SECONDS_PER_VARIABLE if a_variable is None else a_variable) * variables
    if not compiler_profile(chip.kind).host_apart:
        return launching + host
    # The host prepares the next micro-step while the device works.
    return launching + np.maximum(chip.dispatch_seconds, host - device_seconds)
