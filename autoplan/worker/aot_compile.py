"""Compiles a training step ahead of time with the target's real compiler, without the target's devices.

The compiled program is the one of `fit`: the model's own `train_step` with its state donated, over the devices of the
mesh. Nothing is executed, and no weight needs a value.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoplan.errors import ConfigError, HardwareError
from autoplan.plan.records import CompiledMemory, CompilerEvidence
from autoplan.worker.trace.target_platform import seen_as
from autoplan.worker.trace.train_step import build_for, resized_specs, state_of, stored_dtype
from cost_models.config import TrainConfig
from cost_models.hardware.compile_targets import EXTRA, CompilerTarget
from cost_models.hardware.platform import TargetPlatform
from cost_models.hlo.buffer_assignment import temporary_heap_bytes
from cost_models.parallel.data_parallel import split_axis

_QUIET_TPU = {
    # Do not query the metadata server, and allow several compilers at once.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}
"""Triton's tile sizes are autotuned on a device; some programs do not compile without a device."""
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_NO_ASSEMBLER = ("libdevice not found", "No PTX compilation provider", "ptxas too old")
_LONGEST_REASON = 500
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_TOO_LARGE = re.compile(rf"Used {_SIZE} of {_SIZE} (?i:hbm)")
_TEMPORARIES_TOO_LARGE = re.compile(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)")
"""XLA:TPU reports only the temporaries if they alone exceed the memory; state and batch are added to them."""
_ON_CHIP = re.compile(r"\b(vmem|smem|[Ss]hared memory)\b")
"""On-chip memories. A kernel may exceed them, which does not mean that the training exceeds the device memory."""


class CompilerRejection(Exception):
    """The compiler rejects the program for another reason than its size."""


class ProgramTooLarge(Exception):
    """The program exceeds the target's memory. Bytes are None if the compiler's message does not state them."""

    def __init__(self, message: str, needed_bytes: int | None, available_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


@dataclass(frozen=True)
class CompiledStep:
    """A compiled micro-step: the evidence from its compiler, and its text."""

    evidence: CompilerEvidence
    text: str


def compile_train_step(
    model: Any,
    batch: Any,
    config: TrainConfig,
    target: CompilerTarget,
    platform: TargetPlatform,
    versions: Mapping[str, str],
) -> CompiledStep:
    """Compile one micro-step of a compiled Keras model for `target`.

    batch     (x, y[, sample_weight]) of arrays or shapes, batch dimension first; its size is replaced
    platform  the target's, which Keras sees while the step is lowered
    versions  versions of the compiler packages, for the evidence

    ConfigError    the target has fewer devices than the mesh, or `jit_compile` is off
    HardwareError  the compiler does not support the target
    ProgramTooLarge, CompilerRejection   the program does not fit the target, or the compiler rejects it
    """
    if not config.jit_compile:
        raise ConfigError("jit_compile is off, so there is no program to compile")
    devices = _devices(target, config)
    shapes = resized_specs(batch, config.batch.global_size)
    build_for(model, shapes)
    state = _state_shapes(model)
    shardings = _Shardings(devices, config)
    of_state = shardings.of_state(state)
    micro_step = jax.jit(
        model.train_step,
        donate_argnums=0,
        in_shardings=(of_state, shardings.of_batch(shapes)),
        out_shardings=(None, of_state),
    )
    started = time.monotonic()
    try:
        with seen_as(platform):
            program = micro_step.lower(state, shapes)
        lowered = time.monotonic()
        compiled, options = _compiled(program, target)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise failure_of(error, target, shardings.bytes_per_device(state, shapes)) from error
    ended = time.monotonic()
    flops, accessed = _counted(compiled)
    evidence = CompilerEvidence(
        target=target.name,
        versions=dict(versions),
        compiler_options=options,
        lower_seconds=lowered - started,
        compile_seconds=ended - lowered,
        memory=_memory(compiled, target),
        flops=flops,
        bytes_accessed=accessed,
    )
    return CompiledStep(evidence, compiled.as_text() or "")


def configure_process(target: CompilerTarget) -> None:
    """Keep JAX from using this machine's accelerators. Must be called before JAX creates a backend."""
    jax.config.update("jax_platforms", "cpu")
    if target.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", target.devices)
    for name, value in _QUIET_TPU.items():
        os.environ.setdefault(name, value)


def _devices(target: CompilerTarget, config: TrainConfig) -> list[Any]:
    """Return the first devices of the target, as many as the mesh has."""
    if config.mesh.devices > target.devices:
        raise ConfigError(
            f"the mesh data={config.mesh.data},model={config.mesh.model} needs {config.mesh.devices} devices, but "
            f"{target.name} has {target.devices}"
        )
    if target.platform == "cpu":
        return jax.devices("cpu")[: config.mesh.devices]
    arguments = dict(target.arguments)
    arguments.setdefault("topology_name", target.topology)
    if target.platform == "cuda":
        arguments["topology"] = target.topology
    try:
        found = topologies.get_topology_desc(platform=target.platform, **arguments).devices
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise HardwareError(f"the installed compiler does not support {target.name}: {error}") from error
    if len(found) != target.devices:
        raise HardwareError(
            f"{target.name} has {len(found)} devices according to the compiler, but {target.devices} by its name"
        )
    return list(found[: config.mesh.devices])


class _Shardings:
    """How state and batch are distributed over a mesh of devices."""

    def __init__(self, devices: Sequence[Any], config: TrainConfig) -> None:
        shape = (config.mesh.data, config.mesh.model)
        self._mesh = Mesh(np.array(devices).reshape(shape), ("data", "model"))
        self._split = config.mesh.data if config.layout.shard_state else 1

    def of_state(self, state: Any) -> Any:
        """Replicate the state; under sharded state, split variables that have a dimension that divides."""
        return jax.tree.map(self._of_variable, state)

    def bytes_per_device(self, state: Any, shapes: Any) -> int:
        """Return the bytes of state and batch on one device, without padding."""
        pairs = zip(
            jax.tree.leaves((state, shapes)),
            jax.tree.leaves((self.of_state(state), self.of_batch(shapes))),
            strict=True,
        )
        return sum(math.prod(sharding.shard_shape(leaf.shape)) * _item_bytes(leaf.dtype) for leaf, sharding in pairs)

    def of_batch(self, shapes: Any) -> Any:
        """Split the batch over the data axis."""
        over_data = NamedSharding(self._mesh, PartitionSpec("data"))
        return jax.tree.map(lambda _: over_data, shapes)

    def _of_variable(self, variable: Any) -> NamedSharding:
        axis = split_axis(variable.shape, self._split)
        names = () if axis is None else (*[None] * axis, "data")
        return NamedSharding(self._mesh, PartitionSpec(*names))


def _item_bytes(dtype: Any) -> int:
    """Return the bytes of an item. Typed random keys have no item size; their data are two 4-byte words."""
    return int(getattr(dtype, "itemsize", 8))


def _state_shapes(model: Any) -> Any:
    return tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in state_of(model))


def _compiled(program: Any, target: CompilerTarget) -> tuple[Any, dict[str, bool]]:
    """Compile a lowered program. Returns it with the compiler options that were needed."""
    try:
        return program.compile(), {}
    except jax.errors.JaxRuntimeError as error:
        if target.platform != "cuda" or _ran_out(str(error)):
            raise
        return program.compile(compiler_options=_WITHOUT_TRITON), dict(_WITHOUT_TRITON)


def failure_of(error: Exception, target: CompilerTarget, argument_bytes: int) -> ProgramTooLarge | CompilerRejection:
    """Return the exception for a compiler error, with the needed and available bytes if the message states them."""
    message = str(error)
    if found := _TOO_LARGE.search(message):
        needed, available = _sizes(found)
        return ProgramTooLarge(found.group(0), needed, available)
    if found := _TEMPORARIES_TOO_LARGE.search(message):
        temporary, available = _sizes(found)
        return ProgramTooLarge(found.group(0), temporary + argument_bytes, available)
    reason = " ".join(message.split())[:_LONGEST_REASON]
    if _ran_out(message):
        return ProgramTooLarge(reason, None, None)
    hint = f"; pip install 'autoplan[{EXTRA}]'" if any(words in message for words in _NO_ASSEMBLER) else ""
    return CompilerRejection(f"the compiler of {target.name} rejects this training program ({reason}){hint}")


def _ran_out(message: str) -> bool:
    """Return whether the message means that the program exceeds the device memory, not an on-chip memory."""
    return _OUT_OF_MEMORY in message and _ON_CHIP.search(message) is None


def _sizes(found: re.Match[str]) -> tuple[int, int]:
    needed, needed_unit, available, available_unit = found.groups()
    return round(float(needed) * _UNITS[needed_unit]), round(float(available) * _UNITS[available_unit])


def _memory(compiled: Any, target: CompilerTarget) -> CompiledMemory:
    figures = compiled.memory_analysis()
    if figures is None:
        raise HardwareError(f"the compiler of {target.name} does not report the memory of its program")
    resident = figures.argument_size_in_bytes + figures.output_size_in_bytes - figures.alias_size_in_bytes
    host = (
        figures.host_argument_size_in_bytes
        + figures.host_output_size_in_bytes
        - figures.host_alias_size_in_bytes
        + figures.host_temp_size_in_bytes
    )
    return CompiledMemory(
        argument_bytes=figures.argument_size_in_bytes,
        output_bytes=figures.output_size_in_bytes,
        alias_bytes=figures.alias_size_in_bytes,
        temporary_bytes=figures.temp_size_in_bytes,
        total_bytes=resident + figures.temp_size_in_bytes,
        peak_bytes=getattr(figures, "peak_memory_in_bytes", None) or None,
        host_bytes=host or None,
        code_bytes=figures.generated_code_size_in_bytes or None,
        temporary_heap_bytes=_heap_bytes(compiled, figures) if target.platform == "tpu" else None,
        held_by="heap" if target.platform == "tpu" else "total",
    )


def _heap_bytes(compiled: Any, figures: Any) -> int | None:
    """Return the bytes of temporaries in a TPU's memory. A heap of copies alone is no temporary to the compiler."""
    found = temporary_heap_bytes(compiled.runtime_executable())
    return None if found is None else min(found, figures.temp_size_in_bytes)


def _counted(compiled: Any) -> tuple[float | None, float | None]:
    """Return the FLOPs and the accessed bytes of a device; None for what the compiler does not count.

    `optimal_seconds` of the compiler is not used, because it sums placeholder values of unknown calls.
    """
    counted = compiled.cost_analysis() or {}
    if isinstance(counted, list):
        counted = counted[0] if counted else {}
    positive = {name: value for name, value in counted.items() if value and value > 0}
    return positive.get("flops"), positive.get("bytes accessed")
