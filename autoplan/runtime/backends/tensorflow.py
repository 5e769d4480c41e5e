"""Implements the `Backend` interface for Keras on TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from tensorflow.python.client import device_lib

from autoplan.runtime.backends.single_device import SingleDeviceBackend

_FAILED_ALLOCATIONS = (
    "failed to allocate memory",
    "cuda_error_out_of_memory",
    "dst tensor is not initialized",  # a copy to a GPU without free memory
)
"""Lower-case parts of messages of `InternalError`. TensorFlow never raises this type for an exception of a script."""
_STREAM_PASSES = 4


@dataclass
class TensorFlowCompileWatch:
    """Counts traces of the training step; TensorFlow optimizes and compiles each trace.

    TensorFlow reports no compile time. XLA compiles a step that was traced for batches of any size once per size, and
    this class does not see that. The median over groups of micro-steps excludes the group in which it happens.
    """

    compilations: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    @property
    def compile_seconds(self) -> None:
        return None


_WATCHES: list[TensorFlowCompileWatch] = []


class TensorFlowBackend(SingleDeviceBackend):
    """Implements `autoplan.runtime.backends.Backend`, which documents each method."""

    name = "tensorflow"
    out_of_memory_errors = (MemoryError, tf.errors.ResourceExhaustedError)
    unsupported_errors = (tf.errors.OpError, RuntimeError, NotImplementedError, TypeError)

    def version(self) -> str:
        return str(tf.__version__)

    def platform(self) -> str:
        return _accelerators()[0].lower() if _accelerators() else "cpu"

    def enable_compilation_cache(self, directory: Path) -> None:
        """Do nothing: TensorFlow does not cache graphs, and caches XLA's programs only under an experimental flag.

        A user can set it with TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=DIR. A warm cache made the first
        micro-step 25% faster.
        """

    def devices(self) -> tuple[int, str, int | None]:
        kinds = _accelerators()
        if not kinds:
            return 1, "cpu", None
        first = next(one for one in device_lib.list_local_devices() if one.device_type == kinds[0])
        found = tf.config.list_physical_devices(kinds[0])
        details = tf.config.experimental.get_device_details(found[0])
        return len(found), str(details.get("device_name", kinds[0])), int(first.memory_limit) or None

    def synchronize(self, values: Any) -> None:
        """Wait for every device. On a CPU operations are synchronous, unless the script has changed that."""
        if _accelerators() or not tf.config.experimental.get_synchronous_execution():
            tf.test.experimental.sync_devices()

    def watch_compilation(self) -> TensorFlowCompileWatch:
        _watch_tracing()
        watch = TensorFlowCompileWatch()
        _WATCHES.append(watch)
        return watch

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        """Run the model's own training function, with its own number of micro-steps per execution.

        The batch is in host memory, as in a fit, so on a GPU each micro-step includes its copy to the device.
        """
        batches = iter(_repeated(model, batch))
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

    def is_failed_allocation(self, error: BaseException) -> bool:
        message = str(error).lower()
        return isinstance(error, tf.errors.InternalError) and any(words in message for words in _FAILED_ALLOCATIONS)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a graph function; Keras compiles it with XLA only on accelerators."""
        program: Callable[..., Any] = tf.function(function, jit_compile=bool(_accelerators()))
        return program

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        """Add an array to a variable in place: two arrays are read and one is written."""
        total = tf.Variable(tf.zeros((elements,)))
        added = tf.ones((elements,))

        def stream() -> None:
            for _ in range(_STREAM_PASSES):
                total.assign_add(added, read_value=False)
            self.synchronize(total)

        return stream, _STREAM_PASSES * 3 * 4 * elements


def _accelerators() -> list[str]:
    """Return the kinds of accelerators of this machine, the preferred kind first."""
    return [kind for kind in ("TPU", "GPU") if tf.config.list_physical_devices(kind)]


def _repeated(model: Any, batch: Any) -> Any:
    """Return a dataset that repeats one batch."""
    element = keras.tree.lists_to_tuples(batch)  # a dataset stacks the items of a list
    return model.distribute_strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(element).repeat())


def _watch_tracing() -> None:
    """Patch Keras so that every training function that it makes from now on counts its traces."""
    original = trainer.TensorFlowTrainer._make_function
    if getattr(original, "counts_traces", False):
        return

    @functools.wraps(original)
    def make_function(model: Any, step_function: Any) -> Any:
        is_training = step_function == model.train_step
        return original(model, _counting(step_function) if is_training else step_function)

    make_function.counts_traces = True  # type: ignore[attr-defined]
    trainer.TensorFlowTrainer._make_function = make_function


def _counting(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(step, updated=())  # a `tf.function` has attributes that must not be copied
    def counted(batch: Any) -> Any:
        if tf.inside_function():
            for watch in _WATCHES:
                watch.compilations += 1
        return step(batch)

    return counted


BACKEND = TensorFlowBackend()
