"""Implements the `Backend` interface for Keras on PyTorch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from keras.src.backend.torch import core
from torch._dynamo import callback as dynamo_callback
from torch._dynamo.utils import counters, get_compilation_metrics

from autoplan.runtime.backends.single_device import SingleDeviceBackend
from autoplan.runtime.data import nested_arrays
from autoplan.runtime.user_code.exceptions import raised_by_python

_FAILED_ALLOCATIONS = (
    "out of memory",  # CUDA, MPS and XPU allocators
    "can't allocate memory",  # the CPU allocator on Linux
    "not enough memory",  # the CPU allocator elsewhere
    "cannot allocate memory",  # the operating system
    "status_alloc_failed",  # cuBLAS, cuDNN and related libraries
)
"""Lower-case parts of messages of a `RuntimeError` that PyTorch's compiled code raises."""
_STREAM_PASSES = 4
_CACHE_HIT, _CACHE_MISS = "fxgraph_cache_hit", "fxgraph_cache_miss"


def _cache_figures() -> dict[str, int]:
    return {name: int(counters["inductor"][name]) for name in (_CACHE_HIT, _CACHE_MISS)}


@dataclass
class TorchCompileWatch:
    """Counts compilations by `torch.compile`. A micro-step that runs eagerly compiles nothing: all counts stay 0.

    A step that is split into several graphs counts as several compilations; `backward` always splits it.
    """

    compilations: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    _made_at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    _before: dict[str, int] = field(default_factory=_cache_figures)
    _depth: int = 0
    _started: float = 0.0
    _wall_seconds: float = 0.0

    @property
    def compile_seconds(self) -> float:
        """Seconds that compilation takes without a cache: wall time, plus the time that the cache reports as saved.

        After a cache miss, later hits come from the same process, and every training has those.
        """
        if self.cache_misses:
            return self._wall_seconds
        # PyTorch records the time that a cache hit saved in a field named after its use, a longer timeout for hosts.
        # A program that is fetched twice reports the same number twice, but would be compiled once: hence the set.
        saved = {
            record.distributed_ephemeral_timeout_us or 0
            for record in get_compilation_metrics()
            if (record.start_time_us or 0) >= self._made_at_us
        }
        return self._wall_seconds + sum(saved) / 1e6

    def on_start(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._started = time.perf_counter()

    def on_end(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.compilations += 1
            self._wall_seconds += time.perf_counter() - self._started
            now = _cache_figures()
            self.cache_hits = now[_CACHE_HIT] - self._before[_CACHE_HIT]
            self.cache_misses = now[_CACHE_MISS] - self._before[_CACHE_MISS]


class TorchBackend(SingleDeviceBackend):
    """Implements `autoplan.runtime.backends.Backend`, which documents each method."""

    name = "torch"
    out_of_memory_errors = (MemoryError, torch.cuda.OutOfMemoryError)
    unsupported_errors = (RuntimeError,)  # NotImplementedError is a subclass

    def version(self) -> str:
        return str(torch.__version__).partition("+")[0]  # a suffix names the build: +cpu, +cu126

    def platform(self) -> str:
        return "cpu" if torch.device(core.get_device()).type == "cpu" else "gpu"

    def configure_devices(self, count: int) -> None:
        super().configure_devices(count)
        core.DEFAULT_DEVICE = "cpu"

    def enable_compilation_cache(self, directory: Path) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        for variable in ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
            os.environ[variable] = "1"
        if "torch._inductor.config" in sys.modules:  # it has already read the environment
            sys.modules["torch._inductor.config"].fx_graph_cache = True  # type: ignore[attr-defined]

    def devices(self) -> tuple[int, str, int | None]:
        device = torch.device(core.get_device())
        if device.type in ("cuda", "xpu"):
            runtime = getattr(torch, device.type)
            index = device.index or 0
            memory_bytes = int(runtime.get_device_properties(index).total_memory)
            return int(runtime.device_count()), str(runtime.get_device_name(index)), memory_bytes
        if device.type == "mps":
            return 1, "mps", int(torch.mps.recommended_max_memory())
        return 1, device.type, None

    def synchronize(self, values: Any) -> None:
        """Wait for accelerators, which run asynchronously. On a CPU operations are synchronous."""
        device = torch.device(core.get_device()).type
        if device in ("cuda", "xpu", "mps"):
            getattr(torch, device).synchronize()

    def is_failed_allocation(self, error: BaseException) -> bool:
        message = str(error).lower()
        found = isinstance(error, RuntimeError) and any(words in message for words in _FAILED_ALLOCATIONS)
        return found and not raised_by_python(error)

    def watch_compilation(self) -> TorchCompileWatch:
        watch = TorchCompileWatch()
        dynamo_callback.on_compile_start(watch.on_start)
        dynamo_callback.on_compile_end(watch.on_end)
        return watch

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        on_device = nested_arrays.map_leaves(_as_fit_tensor, batch)
        model.make_train_function()
        model.train()  # because `fit` leaves the modules in evaluation mode

        def run(micro_steps: int) -> None:
            for _ in range(micro_steps):
                model.train_function([on_device])
            self.synchronize(None)

        return run

    def peak_bytes(self) -> int | None:
        device = torch.device(core.get_device()).type
        if device not in ("cuda", "xpu"):
            return None
        runtime = getattr(torch, device)
        return max(int(runtime.max_memory_allocated(index)) for index in range(runtime.device_count()))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function itself: jit_compile="auto" means eager execution on PyTorch."""
        return function

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        array = torch.zeros(elements, dtype=torch.float32, device=core.get_device())

        def stream() -> None:
            for _ in range(_STREAM_PASSES):
                array.mul_(0.999)
            self.synchronize(array)

        return stream, _STREAM_PASSES * 2 * array.nbytes


def _as_fit_tensor(leaf: Any) -> Any:
    """Convert an array as `fit` does: to a tensor on the device, floating-point data in `keras.config.floatx()`."""
    array = np.asarray(leaf)
    dtype = keras.config.floatx() if array.dtype.kind == "f" else None
    return keras.ops.convert_to_tensor(array, dtype=dtype)


BACKEND = TorchBackend()
