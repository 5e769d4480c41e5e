"""Implements the `Backend` methods that TensorFlow and PyTorch share, because both run on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from autoplan.errors import ConfigError
from autoplan.runtime.optimizers import innermost
from autoplan.runtime.user_code.exceptions import chain


class SingleDeviceBackend:
    """Methods of `autoplan.runtime.backends.Backend` that need no framework.

    out_of_memory_errors   exception types that always mean that memory ran out
    """

    out_of_memory_errors: tuple[type[BaseException], ...] = (MemoryError,)

    def configure_devices(self, count: int) -> None:
        """Accept one device: `keras.distribution` does not split a batch over several."""
        if count > 1:
            raise ConfigError(
                f"{count} simulated devices were requested, but Keras trains on simulated devices only with JAX; "
                "leave --devices out, or use --backend jax"
            )

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> NoReturn:
        raise ConfigError(
            f"the plan's mesh needs {devices} devices, but keras.distribution splits a batch over devices only with "
            "JAX; use a mesh of one device, or --backend jax"
        )

    def replicate_uneven_batches(self) -> None:
        """Do nothing: one device accepts a batch of any size."""

    def logs_of(self, outputs: Any) -> Mapping[str, object]:
        logs: Mapping[str, object] = outputs
        return logs

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        counter = getattr(innermost(model.optimizer), "_iterations", None)
        return None if counter is None else int(counter)

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """Return None: neither framework reports the memory of a compiled program."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        return any(isinstance(one, self.out_of_memory_errors) or self.is_failed_allocation(one) for one in chain(error))

    def is_failed_allocation(self, error: BaseException) -> bool:
        """Return whether a less specific exception of the framework itself reports a failed allocation."""
        return False

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        """Return None: there is one device."""
        return None
