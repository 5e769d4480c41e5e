"""The training step -> what the target's real compiler says of it, with no device present.

What is compiled is what `fit` compiles: the model's own `train_step` with its state donated, over the devices of the
mesh. Nothing is run, and no weight needs a value.
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
from autoplan.worker.trace.train_step import build_for, sized, state_of, stored_dtype
from cost_models.config import TrainConfig
from cost_models.hardware.compile_targets import EXTRA, CompilerTarget
from cost_models.parallel.data_parallel import split_axis

_QUIET_TPU = {
    # No metadata server is asked what this machine is, and several compilers may run at once.
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
"""Tiles of Triton's products are searched on a device; some programs do not compile without one."""
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_NO_ASSEMBLER = ("libdevice not found", "No PTX compilation provider", "ptxas too old")
_LONGEST_REASON = 500
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_TOO_LARGE = re.compile(rf"Used {_SIZE} of {_SIZE} (?i:hbm)")
_TEMPORARIES_TOO_LARGE = re.compile(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)")
"""XLA:TPU gives up on temporaries alone where they exceed the device; state and batch come on top of them."""
_ON_CHIP = re.compile(r"\b(vmem|smem|[Ss]hared memory)\b")
"""A kernel may ask for more of these than a core has: that says nothing of the memory that a training must fit."""


class Refused(Exception):
    """The compiler does not take the program, for another reason than its size."""


class TooLarge(Exception):
    """The compiler ran out of the target's memory. Bytes are None where its message does not tell them."""

    def __init__(self, message: str, needed_bytes: int | None, available_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


@dataclass(frozen=True)
class Lowered:
    """A compiled micro-step: what is told of it, and its text."""

    evidence: CompilerEvidence
    text: str


def lower(model: Any, batch: Any, config: TrainConfig, target: CompilerTarget, versions: Mapping[str, str]) -> Lowered:
    """Compile one micro-step of a compiled Keras model for `target`.

    batch     (x, y[, sample_weight]) of arrays or shapes, batch dimension first; its size is replaced
    versions  of the packages that compile, as they shall stand in the evidence

    ConfigError for a mesh that the target does not have, and where nothing would be compiled (`jit_compile` off);
    HardwareError where the compiler does not take the target; TooLarge where the program does not fit it, Refused
    where the compiler does not take the program.
    """
    if not config.jit_compile:
        raise ConfigError("without jit_compile nothing is compiled, so no compiler can be asked")
    devices = _devices(target, config)
    shapes = sized(batch, config.batch.global_size)
    build_for(model, shapes)
    state = _state_shapes(model)
    places = _Places(devices, config)
    of_state = places.of_state(state)
    micro_step = jax.jit(
        model.train_step,
        donate_argnums=0,
        in_shardings=(of_state, places.of_batch(shapes)),
        out_shardings=(None, of_state),
    )
    started = time.monotonic()
    try:
        program = micro_step.lower(state, shapes)
        lowered = time.monotonic()
        compiled, options = _compiled(program, target)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise _why(error, target, places.bytes_of(state, shapes)) from error
    ended = time.monotonic()
    flops, accessed = _counted(compiled)
    evidence = CompilerEvidence(
        target=target.name,
        versions=dict(versions),
        compiler_options=options,
        lower_seconds=lowered - started,
        compile_seconds=ended - lowered,
        memory=_memory(compiled.memory_analysis(), target),
        flops=flops,
        bytes_accessed=accessed,
    )
    return Lowered(evidence, compiled.as_text() or "")


def prepare(target: CompilerTarget) -> None:
    """Keep the accelerators of this machine out of it. Called before a backend of JAX exists."""
    jax.config.update("jax_platforms", "cpu")
    if target.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", target.devices)
    for name, value in _QUIET_TPU.items():
        os.environ.setdefault(name, value)


def _devices(target: CompilerTarget, config: TrainConfig) -> list[Any]:
    """As many of the target's devices as the mesh has, in the target's own order."""
    if config.mesh.devices > target.devices:
        raise ConfigError(
            f"a mesh of data={config.mesh.data},model={config.mesh.model} needs {config.mesh.devices} devices, and "
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
        raise HardwareError(f"{target.name} is not taken by the compiler that is installed here: {error}") from error
    if len(found) != target.devices:
        raise HardwareError(
            f"{target.name} has {len(found)} devices for the compiler, and {target.devices} by its name"
        )
    return list(found[: config.mesh.devices])


class _Places:
    """Where state and batch lie on a mesh of devices."""

    def __init__(self, devices: Sequence[Any], config: TrainConfig) -> None:
        shape = (config.mesh.data, config.mesh.model)
        self._mesh = Mesh(np.array(devices).reshape(shape), ("data", "model"))
        self._split = config.mesh.data if config.layout.shard_state else 1

    def of_state(self, state: Any) -> Any:
        """Whole on every device; under sharded state split where a dimension divides."""
        return jax.tree.map(self._of_variable, state)

    def bytes_of(self, state: Any, shapes: Any) -> int:
        """Bytes of state and batch on one device, without padding."""
        pairs = zip(
            jax.tree.leaves((state, shapes)),
            jax.tree.leaves((self.of_state(state), self.of_batch(shapes))),
            strict=True,
        )
        return sum(math.prod(place.shard_shape(one.shape)) * _item_bytes(one.dtype) for one, place in pairs)

    def of_batch(self, shapes: Any) -> Any:
        """Split over the data axis."""
        over_data = NamedSharding(self._mesh, PartitionSpec("data"))
        return jax.tree.map(lambda _: over_data, shapes)

    def _of_variable(self, variable: Any) -> NamedSharding:
        axis = split_axis(variable.shape, self._split)
        names = () if axis is None else (*[None] * axis, "data")
        return NamedSharding(self._mesh, PartitionSpec(*names))


def _item_bytes(dtype: Any) -> int:
    """Typed random keys have no item size of their own: theirs is two words."""
    return int(getattr(dtype, "itemsize", 8))


def _state_shapes(model: Any) -> Any:
    return tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in state_of(model))


def _compiled(program: Any, target: CompilerTarget) -> tuple[Any, dict[str, Any]]:
    """The program, and what the compiler had to be told."""
    try:
        return program.compile(), {}
    except jax.errors.JaxRuntimeError as error:
        if target.platform != "cuda" or _ran_out(str(error)):
            raise
        return program.compile(compiler_options=_WITHOUT_TRITON), dict(_WITHOUT_TRITON)


def _why(error: Exception, target: CompilerTarget, argument_bytes: int) -> TooLarge | Refused:
    """What the compiler says: with both figures, where it ran out of memory and tells them."""
    message = str(error)
    if found := _TOO_LARGE.search(message):
        needed, available = _sizes(found)
        return TooLarge(found.group(0), needed, available)
    if found := _TEMPORARIES_TOO_LARGE.search(message):
        temporary, available = _sizes(found)
        return TooLarge(found.group(0), temporary + argument_bytes, available)
    reason = " ".join(message.split())[:_LONGEST_REASON]
    if _ran_out(message):
        return TooLarge(reason, None, None)
    hint = f"; pip install 'autoplan[{EXTRA}]'" if any(words in message for words in _NO_ASSEMBLER) else ""
    return Refused(f"{target.name} does not compile this training program ({reason}){hint}")


def _ran_out(message: str) -> bool:
    """Whether it is the device's own memory that a compiler finds too small."""
    return _OUT_OF_MEMORY in message and _ON_CHIP.search(message) is None


def _sizes(found: re.Match[str]) -> tuple[int, int]:
    needed, needed_unit, available, available_unit = found.groups()
    return round(float(needed) * _UNITS[needed_unit]), round(float(available) * _UNITS[available_unit])


def _memory(figures: Any, target: CompilerTarget) -> CompiledMemory:
    if figures is None:
        raise HardwareError(f"{target.name} does not tell what its program needs")
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
        held_by="peak" if target.platform == "tpu" else "total",
    )


def _counted(compiled: Any) -> tuple[float | None, float | None]:
    """(FLOPs, bytes) a device, where the compiler counts them.

    Its `optimal_seconds` sums sentinels of calls that it does not know, and is no figure.
    """
    counted = compiled.cost_analysis() or {}
    if isinstance(counted, list):
        counted = counted[0] if counted else {}
    positive = {name: value for name, value in counted.items() if value and value > 0}
    return positive.get("flops"), positive.get("bytes accessed")
