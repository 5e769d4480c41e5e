"""Implements the `Backend` interface for Keras on JAX."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import keras
from jax import numpy as jnp
from keras.src.backend.jax import distribution_lib, trainer

from autoplan.errors import ConfigError
from autoplan.runtime.optimizers import innermost
from autoplan.runtime.user_code.exceptions import chain
from cost_models.parallel.data_parallel import split_axis

_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
_SAVED_EVENT = "/jax/compilation_cache/compile_time_saved_sec"
_RESOURCE_EXHAUSTED = re.compile(r"(?:[A-Z_]+: [^\n]*)?\bRESOURCE_EXHAUSTED: ")
"""The status code at the start of an error of XLA, also within the code of a later stage. Text of a callback's own
exception comes on later lines."""
_STREAM_PASSES = 4


@dataclass
class JaxCompileWatch:
    """Counts compilations of the training step from events of `jax.monitoring`; initializers do not count.

    compile_seconds is the time that compilation takes without a cache: a program from the persistent cache counts with
    the seconds that the cache has recorded for it.
    """

    compilations: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0

    _saved_seconds: float = 0.0

    def on_duration(self, event: str, duration_secs: float, **details: Any) -> None:
        if event == _SAVED_EVENT:
            self._saved_seconds = duration_secs
        elif event in _COMPILE_EVENTS and "train_step" in str(details.get("fun_name", "")):
            self.compile_seconds += duration_secs
            if event == _COMPILE_EVENTS[-1]:
                self.compilations += 1
                self.compile_seconds += self._saved_seconds
        if event == _COMPILE_EVENTS[-1]:
            self._saved_seconds = 0.0

    def on_event(self, event: str, **_: Any) -> None:
        self.cache_hits += event == "/jax/compilation_cache/cache_hits"
        self.cache_misses += event == "/jax/compilation_cache/cache_misses"


class _ShardedState(keras.distribution.DataParallel):
    """Data parallelism with weights and optimizer state split over the same axis (ZeRO-3, FSDP).

    XLA inserts an all-gather before each use of a weight, and a reduce-scatter of its gradient.
    """

    def get_variable_layout(self, variable: Any) -> Any:
        layout = super().get_variable_layout(variable)
        axis = split_axis(tuple(variable.shape), self.device_mesh.devices.size)
        if axis is None or any(layout.axes):  # no dimension divides, or the user's own code sets a layout
            return layout
        axes = [self.batch_dim_name if dimension == axis else None for dimension in range(len(variable.shape))]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


class JaxBackend:
    """Implements `autoplan.runtime.backends.Backend`, which documents each method."""

    name = "jax"
    unsupported_errors = (RuntimeError, NotImplementedError)

    def version(self) -> str:
        return jax.__version__

    def platform(self) -> str:
        name: str = jax.local_devices()[0].platform
        return name if name in ("cpu", "tpu") else "gpu"

    def configure_devices(self, count: int) -> None:
        jax.config.update("jax_num_cpu_devices", count)
        if count > 1:
            _wait_for_each_program()

    def enable_compilation_cache(self, directory: Path) -> None:
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

    def devices(self) -> tuple[int, str, int | None]:
        found = jax.devices()
        stats = found[0].memory_stats() or {}
        return len(found), found[0].device_kind, stats.get("bytes_limit")

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> Any:
        found = keras.distribution.list_devices()
        if len(found) < devices:
            raise ConfigError(
                f"the plan's mesh needs {devices} devices and this machine has {len(found)}; "
                f"use a mesh of at most {len(found)}, or tune with --devices {devices} to simulate them on a CPU"
            )
        mesh = keras.distribution.DeviceMesh((devices,), ["data"], found[:devices])
        kind = _ShardedState if shard_state else keras.distribution.DataParallel
        return kind(device_mesh=mesh, auto_shard_dataset=False)

    def replicate_uneven_batches(self) -> None:
        """Patch Keras, which rejects a batch that does not divide over the mesh, such as the last batch of an epoch.

        The uneven batch is replicated: each device computes all of it, with the same result as on one device.
        """
        original = distribution_lib.distribute_data_input
        if getattr(original, "replicates_uneven_batches", False):
            return

        def distribute(per_process_batch: Any, layout: Any, batch_dim_name: Any) -> Any:
            sharding = getattr(layout, "backend_layout", layout)
            if isinstance(sharding, jax.sharding.NamedSharding):
                try:
                    sharding.shard_shape(per_process_batch.shape)
                except ValueError:
                    replicated = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
                    return jax.device_put(per_process_batch, replicated)
            return original(per_process_batch, layout, batch_dim_name)

        distribute.replicates_uneven_batches = True  # type: ignore[attr-defined]
        distribution_lib.distribute_data_input = distribute

    def synchronize(self, values: Any) -> None:
        if values is None:
            values = [array for array in jax.live_arrays() if not array.is_deleted()]
        jax.block_until_ready(values)

    def logs_of(self, outputs: Any) -> Mapping[str, object]:
        logs: Mapping[str, object] = outputs[0]
        return logs

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        counter = getattr(innermost(model.optimizer), "_iterations", None)
        if counter is None or outputs is None:
            return None if counter is None else int(counter)
        # During a fit the current values are in the training function's state; the variables hold old values.
        at = next(at for at, variable in enumerate(model.optimizer.variables) if variable is counter)
        return int(outputs[1][2][at])

    def watch_compilation(self) -> JaxCompileWatch:
        watch = JaxCompileWatch()
        jax.monitoring.register_event_duration_secs_listener(watch.on_duration)
        jax.monitoring.register_event_listener(watch.on_event)
        return watch

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        on_device = trainer._distribute_data(batch)
        state = model._get_jax_state(
            trainable_variables=True,
            non_trainable_variables=True,
            optimizer_variables=True,
            metrics_variables=True,
            purge_model_variables=True,
        )
        state = _without_aliases(state)

        def run(micro_steps: int) -> None:
            nonlocal state
            logs = None
            calls = -(-micro_steps // model.steps_per_execution)
            for _ in range(calls):
                logs, state = model.train_function(state, itertools.repeat(on_device))
            jax.block_until_ready((logs, state))

        return run

    def peak_bytes(self) -> int | None:
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if known else None

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        state = model._get_jax_state(
            trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
        )
        step = jax.jit(model.train_step, donate_argnums=0)
        figures = step.lower(state, trainer._distribute_data(batch)).compile().memory_analysis()
        if figures is None:
            return None
        total = (
            figures.argument_size_in_bytes
            + figures.output_size_in_bytes
            - figures.alias_size_in_bytes
            + figures.temp_size_in_bytes
        )
        return int(total) or None

    def is_out_of_memory(self, error: BaseException) -> bool:
        return any(_ran_out_of_memory(one) for one in chain(error))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        program: Callable[..., Any] = jax.jit(function)
        return program

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        """Update an array in place several times per program, so that neither copies nor page faults are measured."""

        def passes(x: Any) -> Any:
            return jax.lax.fori_loop(0, _STREAM_PASSES, lambda _, a: a * 0.999 + 1.0, x)

        in_place = jax.jit(passes, donate_argnums=0)
        array = jnp.zeros((elements,), jnp.float32)

        def stream() -> None:
            nonlocal array
            array = in_place(array).block_until_ready()

        return stream, _STREAM_PASSES * 2 * array.nbytes

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        devices = jax.local_devices()
        if len(devices) == 1:
            return None
        mesh, over_data = jax.sharding.Mesh(devices, ("data",)), jax.sharding.PartitionSpec("data")
        total = jax.jit(
            jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=over_data, out_specs=over_data)
        )
        sharding = jax.sharding.NamedSharding(mesh, over_data)
        array = jax.device_put(jnp.ones((len(devices) * elements,), jnp.float32), sharding)
        return lambda: total(array).block_until_ready()


def _ran_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, jax.errors.JaxRuntimeError) and _RESOURCE_EXHAUSTED.match(str(error).lstrip()) is not None


def _without_aliases(state: Any) -> Any:
    """Copy leaves that share a buffer with another leaf, so that the state can be donated.

    After a fit with a moving average of weights, Keras has assigned the array of the average to each weight.
    """
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if id(leaf) in seen:
            return jax.numpy.array(leaf, copy=True)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


def _wait_for_each_program() -> None:
    """Patch Keras so that its compiled functions block until they are done.

    Programs that are dispatched asynchronously share one thread pool. With fewer cores than simulated devices, an
    all-reduce may wait forever for its participants, and XLA aborts the process after 40 s. This was observed with
    jaxlib 0.10.2 and 4 devices on 2 cores; `jax_cpu_enable_async_dispatch=False` does not prevent it.
    """
    compiled = trainer.jit

    def jit(*args: Any, **kwargs: Any) -> Any:
        function = compiled(*args, **kwargs)

        @functools.wraps(function)
        def run(*inputs: Any) -> Any:
            return jax.block_until_ready(function(*inputs))

        return run

    trainer.jit = jit


BACKEND = JaxBackend()
