"""`Backend`: the interface to Keras backends, with everything that differs between JAX, TensorFlow and PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from autoplan.errors import ConfigError

PRELOADED: Mapping[str, tuple[str, ...]] = {
    "jax": ("jax", "jax.numpy"),
    "tensorflow": ("tensorflow",),
    "torch": ("torch",),
}
"""Modules that a worker's server imports before it forks. A backend that is not listed here cannot run trials."""


class CompileWatch(Protocol):
    """Counts compilations of the training step since its creation.

    compile_seconds is None if the backend does not report it; it is then estimated as the difference between the first
    call and later calls.
    """

    compilations: int
    cache_hits: int
    cache_misses: int

    @property
    def compile_seconds(self) -> float | None:
        """Return the seconds of all compilations so far."""


class Backend(Protocol):
    """The interface that the runtime and the workers need from a backend."""

    name: str
    unsupported_errors: tuple[type[Exception], ...]
    """Exceptions raised if a device does not support an operation, or not with the given dtype."""

    def version(self) -> str:
        """Return the version of the framework."""

    def platform(self) -> str:
        """Return the kind of the first device: cpu, gpu or tpu."""

    def configure_devices(self, count: int) -> None:
        """Create `count` simulated CPU devices. Must be called before a device is used.

        ConfigError for more than one device if the backend cannot train on simulated devices.
        """

    def enable_compilation_cache(self, directory: Path) -> None:
        """Cache compiled programs of any size in `directory`. Does nothing on a backend without a cache."""

    def devices(self) -> tuple[int, str, int | None]:
        """Return the number of devices, their kind, and the bytes of memory of one; None if the device reports none."""

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> Any:
        """Return a `keras.distribution` over the first `devices` devices, with the axis `data`.

        shard_state  also split weights and optimizer state over the devices, if a dimension divides

        ConfigError if the machine has fewer devices.
        """

    def replicate_uneven_batches(self) -> None:
        """Replicate a batch that does not divide over the mesh, instead of rejecting it."""

    def synchronize(self, values: Any) -> None:
        """Wait until `values` are computed. None waits for everything that was started."""

    def logs_of(self, outputs: Any) -> Mapping[str, object]:
        """Return the logs from the outputs of a model's training function."""

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        """Return the micro-steps that the model's optimizer has counted; None for an optimizer without a counter.

        outputs  the latest outputs of the training function; None before the first micro-step of a fit
        """

    def watch_compilation(self) -> CompileWatch:
        """Start counting compilations of the training step."""

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        """Return a function that runs n micro-steps on one batch, and waits for the last of them.

        batch  as `train_step` receives it; it is moved to the device once where the backend allows it
        """

    def peak_bytes(self) -> int | None:
        """Return the largest number of bytes allocated on any device so far; None if devices do not count."""

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """Return the bytes of the compiled step on a device: arguments + outputs - aliases + temporaries; else None."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether this exception means that memory ran out."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function of `keras.ops` as this backend compiles a micro-step with jit_compile="auto"."""

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        """Return a blocking call that reads and writes float32 arrays of `elements` elements, and its bytes moved."""

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        """Return a blocking call that sums a float32 array of `elements` elements per device over all devices.

        None on one device, and on a backend on which Keras cannot split a batch over devices.
        """


def get(name: str) -> Backend:
    """Return the backend of that name. ConfigError if autoplan cannot run it."""
    if name not in PRELOADED:
        raise ConfigError(
            f"the {name!r} backend is not supported; expected {' or '.join(sorted(PRELOADED))}: "
            "set KERAS_BACKEND=jax, or use --no-measure"
        )
    module = importlib.import_module(f"autoplan.runtime.backends.{name}")
    backend: Backend = module.BACKEND
    return backend
