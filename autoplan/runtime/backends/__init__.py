"""What differs between backends, behind one small interface. Importing this module imports no backend."""

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
"""What a worker's server imports before it forks; a backend that is not listed here cannot run trials yet."""


class CompileWatch(Protocol):
    """Counts compilations of the training step from the moment it is made.

    compile_seconds is None where the backend does not tell compiling from running: then what the first call took longer
    than later ones stands for it.
    """

    compilations: int
    cache_hits: int
    cache_misses: int

    @property
    def compile_seconds(self) -> float | None:
        """Seconds of all compilations so far."""


class Backend(Protocol):
    """What the runtime and the workers need to know of a backend."""

    name: str
    refusals: tuple[type[Exception], ...]
    """What is raised where a device lacks an operation, or has it for other dtypes only."""

    def version(self) -> str:
        """The version of the framework."""

    def platform(self) -> str:
        """Of which sort the first device is: cpu, gpu or tpu."""

    def configure_devices(self, count: int) -> None:
        """Make `count` simulated CPU devices. Only before the first device is touched.

        ConfigError for more than one where the backend cannot train on them.
        """

    def enable_compilation_cache(self, directory: Path) -> None:
        """Keep compiled programs in `directory`, whatever their size; nothing where the backend keeps none."""

    def devices(self) -> tuple[int, str, int | None]:
        """How many devices, their kind, and the memory of one in bytes where the device tells."""

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> Any:
        """A `keras.distribution` over the first `devices` devices, axis `data`. ConfigError when there are fewer.

        shard_state  weights and optimizer state are split over the devices too, where a dimension divides
        """

    def accept_remainders(self) -> None:
        """Let a batch that does not divide over the mesh be replicated instead of refused."""

    def synchronize(self, values: Any) -> None:
        """Wait until `values` are computed; None: until everything is that was started."""

    def logs_of(self, outputs: Any) -> Mapping[str, Any]:
        """The logs among what a model's training function returns."""

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        """Micro-steps that the model's optimizer has counted; None for a model that brings no such optimizer.

        outputs  what the training function has just returned; None before a fit's first micro-step
        """

    def watch_compilation(self) -> CompileWatch:
        """Start counting compilations of the training step."""

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        """A function that runs n micro-steps on one batch that is already on the device, and waits for the last.

        batch  as `train_step` gets it
        """

    def peak_bytes(self) -> int | None:
        """Largest allocation of any device so far, where the device counts."""

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """What the compiled training step needs on a device: arguments + outputs - aliases + temporaries."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether this exception says that memory ran out."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors, made of `keras.ops`, as this backend runs a micro-step where a script says nothing."""

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        """A call that reads and writes float32 arrays of so many elements in place, and the bytes that it moves.

        It returns when it is done.
        """

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        """A call that sums a float32 array of so many elements a device over all devices, and returns when it is done.

        None on one device, and where Keras cannot split a batch over several.
        """


def get(name: str) -> Backend:
    """The backend of that name. ConfigError when autoplan cannot run it."""
    if name not in PRELOADED:
        raise ConfigError(
            f"the {name!r} backend cannot be run yet; expected {' or '.join(sorted(PRELOADED))}: "
            "set KERAS_BACKEND=jax, or use --no-measure"
        )
    module = importlib.import_module(f"autoplan.runtime.backends.{name}")
    backend: Backend = module.BACKEND
    return backend
