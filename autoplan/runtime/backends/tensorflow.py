"""Keras on TensorFlow: a graph a micro-step, or several in one loop, compiled with XLA where the model asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from tensorflow.python.client import device_lib

from autoplan.errors import ConfigError
from autoplan.runtime.optimizers import innermost

_OUT_OF_MEMORY = (
    "oom when allocating",
    "out of memory",
    "failed to allocate memory",
    "cuda_error_out_of_memory",
    "dst tensor is not initialized",  # what a copy to a full GPU says
    "std::bad_alloc",
)
_STREAM_PASSES = 4


@dataclass
class TensorFlowCompileWatch:
    """Counts tracings of the training step, each of which is optimized and compiled anew.

    TensorFlow tells no compile time. A step that was traced for batches of any size is compiled by XLA once a size,
    which nothing here sees: groups of micro-steps are many, and their median leaves out the one where it happened.
    """

    compilations: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    @property
    def compile_seconds(self) -> None:
        return None


_WATCHES: list[TensorFlowCompileWatch] = []


class TensorFlowBackend:
    """See `autoplan.runtime.backends.Backend` for what each method owes."""

    name = "tensorflow"
    refusals = (tf.errors.OpError, RuntimeError, NotImplementedError, TypeError)

    def version(self) -> str:
        return str(tf.__version__)

    def platform(self) -> str:
        return _accelerators()[0].lower() if _accelerators() else "cpu"

    def configure_devices(self, count: int) -> None:
        """One device alone: TensorFlow has logical CPU devices, and `keras.distribution` spreads no batch over them."""
        if count > 1:
            raise ConfigError(
                f"{count} simulated devices were asked for, and Keras trains on simulated devices with JAX alone; "
                "leave --devices out, or use --backend jax"
            )

    def enable_compilation_cache(self, directory: Path) -> None:
        """Nothing: graphs are never kept, and XLA's programs by an experimental flag alone, which is the user's to set.

        (TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=DIR; a warm one took a quarter off a first micro-step's time.)
        """

    def devices(self) -> tuple[int, str, int | None]:
        kinds = _accelerators()
        if not kinds:
            return 1, "cpu", None
        first = next(one for one in device_lib.list_local_devices() if one.device_type == kinds[0])
        found = tf.config.list_physical_devices(kinds[0])
        details = tf.config.experimental.get_device_details(found[0])
        return len(found), str(details.get("device_name", kinds[0])), int(first.memory_limit) or None

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> Any:
        raise ConfigError(
            f"the plan's mesh needs {devices} devices, and keras.distribution splits a batch over devices on JAX "
            "alone; use a mesh of one device, or --backend jax"
        )

    def accept_remainders(self) -> None:
        """A batch of any size is right on one device."""

    def synchronize(self, values: Any) -> None:
        """Wait for every device. On a CPU an operation is done when it returns, unless the script made it otherwise."""
        if _accelerators() or not tf.config.experimental.get_synchronous_execution():
            tf.test.experimental.sync_devices()

    def logs_of(self, outputs: Any) -> Mapping[str, Any]:
        logs: Mapping[str, Any] = outputs
        return logs

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        counter = getattr(innermost(model.optimizer), "_iterations", None)
        return None if counter is None else int(counter)

    def watch_compilation(self) -> TensorFlowCompileWatch:
        _watch_tracing()
        watch = TensorFlowCompileWatch()
        _WATCHES.append(watch)
        return watch

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        """Runs `model`'s own training function, several micro-steps an execution as it has them.

        The batch lies in the host's memory, as in a fit: on a GPU its copy to the device is in each micro-step.
        """
        batches = iter(_endless(model, batch))
        model.make_train_function()

        def run(micro_steps: int) -> None:
            for _ in range(-(-micro_steps // model.steps_per_execution)):
                model.train_function(batches)
            self.synchronize(None)

        return run

    def peak_bytes(self) -> int | None:
        peaks = [
            tf.config.experimental.get_memory_info(f"{kind}:{index}")["peak"]
            for kind in _accelerators()
            for index in range(len(tf.config.list_logical_devices(kind)))
        ]
        return max(peaks) if peaks else None

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """Not known: neither TensorFlow's graphs nor its door to XLA state the memory of a program."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)):
            return True
        message = str(error).lower()
        return isinstance(error, Exception) and any(words in message for words in _OUT_OF_MEMORY)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A graph, which Keras compiles with XLA on accelerators alone."""
        program: Callable[..., Any] = tf.function(function, jit_compile=bool(_accelerators()))
        return program

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        """A variable to which an array is added: two are read and one is written, in place."""
        total = tf.Variable(tf.zeros((elements,)))
        added = tf.ones((elements,))

        def stream() -> None:
            for _ in range(_STREAM_PASSES):
                total.assign_add(added, read_value=False)
            self.synchronize(total)

        return stream, _STREAM_PASSES * 3 * 4 * elements

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        return None


def _accelerators() -> list[str]:
    """Kinds of accelerators that are here, the one that is used first."""
    return [kind for kind in ("TPU", "GPU") if tf.config.list_physical_devices(kind)]


def _endless(model: Any, batch: Any) -> Any:
    """A dataset that gives one batch for ever."""
    only = keras.tree.lists_to_tuples(batch)  # a dataset stacks what is in a list
    return model.distribute_strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(only).repeat())


def _watch_tracing() -> None:
    """Have every training step that Keras makes a function of from now on tell when it is traced."""
    original = trainer.TensorFlowTrainer._make_function
    if getattr(original, "tells_tracings", False):
        return

    @functools.wraps(original)
    def make_function(model: Any, step_function: Any) -> Any:
        is_training = step_function == model.train_step
        return original(model, _telling(step_function) if is_training else step_function)

    make_function.tells_tracings = True  # type: ignore[attr-defined]
    trainer.TensorFlowTrainer._make_function = make_function


def _telling(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(step, updated=())  # a `tf.function` carries much that is its own
    def told(batch: Any) -> Any:
        if tf.inside_function():
            for watch in _WATCHES:
                watch.compilations += 1
        return step(batch)

    return told


BACKEND = TensorFlowBackend()
