"""What differs between backends, behind one small interface. Importing this module imports no backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from autoplan.errors import ConfigError

PRELOADED: Mapping[str, tuple[str, ...]] = {"jax": ("jax", "jax.numpy")}
"""What a worker's server imports before it forks; a backend that is not listed here cannot run trials yet."""


class CompileWatch(Protocol):
    """Counts compilations of the training step from the moment it is made."""

    compilations: int
    compile_seconds: float
    cache_hits: int
    cache_misses: int


class Backend(Protocol):
    """What the runtime and the workers need to know of a backend."""

    name: str

    def version(self) -> str:
        """The version of the framework."""

    def configure_devices(self, count: int) -> None:
        """Make `count` simulated CPU devices. Only before the first device is touched."""

    def enable_compilation_cache(self, directory: Path) -> None:
        """Keep compiled programs in `directory`, whatever their size."""

    def devices(self) -> tuple[int, str, int | None]:
        """How many devices, their kind, and the memory of one in bytes where the device tells."""

    def data_parallel(self, devices: int) -> Any:
        """A `keras.distribution` over the first `devices` devices, axis `data`. ConfigError when there are fewer."""

    def accept_remainders(self) -> None:
        """Let a batch that does not divide over the mesh be replicated instead of refused."""

    def synchronize(self, values: Any) -> None:
        """Wait until `values` are computed."""

    def logs_of(self, outputs: Any) -> Mapping[str, Any]:
        """The logs among what a model's training function returns."""

    def watch_compilation(self) -> CompileWatch:
        """Start counting compilations of the training step."""

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        """A function that runs n micro-steps on one batch that is already on the device, and waits for the last."""

    def peak_bytes(self) -> int | None:
        """Largest allocation of any device so far, where the device counts."""

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """What the compiled training step needs on a device: arguments + outputs - aliases + temporaries."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether this exception says that memory ran out."""


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
