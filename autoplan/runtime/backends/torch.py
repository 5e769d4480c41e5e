"""Keras on PyTorch: eager, one operation at a time, unless a model asks for `torch.compile` with jit_compile=True."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from keras.src.backend.torch import core
from torch._dynamo import callback as dynamo_callback
from torch._dynamo.utils import counters, get_compilation_metrics

from autoplan.errors import ConfigError
from autoplan.runtime.data import data_facts
from autoplan.runtime.optimizers import innermost

_OUT_OF_MEMORY = (
    "out of memory",  # CUDA, MPS and XPU allocators
    "can't allocate memory",  # the CPU allocator on Linux
    "not enough memory",  # the CPU allocator elsewhere
    "cannot allocate memory",  # the operating system
    "status_alloc_failed",  # cuBLAS, cuDNN and their like
)
_STREAM_PASSES = 4
_CACHE_HIT, _CACHE_MISS = "fxgraph_cache_hit", "fxgraph_cache_miss"


def _cache_figures() -> dict[str, int]:
    return {name: int(counters["inductor"][name]) for name in (_CACHE_HIT, _CACHE_MISS)}


@dataclass
class TorchCompileWatch:
    """Listens to what `torch.compile` compiles. A micro-step that runs eagerly compiles nothing: all figures stay 0.

    A step that is cut into several graphs (it always is, around `backward`) counts as several compilations.
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
        """What compiling costs without a cache: wall seconds, and those that the cache says it saved.

        Where anything was compiled here, a hit is one of the same process, which every training gets.
        """
        if self.cache_misses:
            return self._wall_seconds
        # PyTorch keeps what a cache hit saved under the name of what it does with it: waiting longer for other hosts.
        # A program that is fetched twice saves the same microseconds both times, and would be compiled once.
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


class TorchBackend:
    """See `autoplan.runtime.backends.Backend` for what each method owes."""

    name = "torch"
    refusals = (RuntimeError,)  # NotImplementedError is one of them

    def version(self) -> str:
        return str(torch.__version__).partition("+")[0]  # what follows names the build (+cpu, +cu126), not the version

    def platform(self) -> str:
        return "cpu" if torch.device(core.get_device()).type == "cpu" else "gpu"

    def configure_devices(self, count: int) -> None:
        if count > 1:
            raise ConfigError(
                f"{count} simulated devices were asked for, and only JAX can simulate devices on a CPU; "
                "leave --devices out, or use --backend jax"
            )
        core.DEFAULT_DEVICE = "cpu"

    def enable_compilation_cache(self, directory: Path) -> bool:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        for variable in ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
            os.environ[variable] = "1"
        if "torch._inductor.config" in sys.modules:  # it has read the environment by then
            sys.modules["torch._inductor.config"].fx_graph_cache = True  # type: ignore[attr-defined]
        return True

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

    def data_parallel(self, devices: int, *, shard_state: bool = False) -> Any:
        raise ConfigError(
            f"the plan's mesh has {devices} devices, and keras.distribution splits a batch over devices on the JAX "
            "backend only; use a mesh of 1, or the JAX backend"
        )

    def accept_remainders(self) -> None:
        """A batch of any size is right on one device."""

    def synchronize(self, values: Any) -> None:
        """Accelerators compute behind the program's back; on a CPU an operation is done when it returns."""
        device = torch.device(core.get_device()).type
        if device in ("cuda", "xpu", "mps"):
            getattr(torch, device).synchronize()

    def logs_of(self, outputs: Any) -> Mapping[str, Any]:
        logs: Mapping[str, Any] = outputs
        return logs

    def counted_micro_steps(self, model: Any, outputs: Any) -> int | None:
        counter = getattr(innermost(model.optimizer), "_iterations", None)
        return None if counter is None else int(counter)

    def watch_compilation(self) -> TorchCompileWatch:
        watch = TorchCompileWatch()
        dynamo_callback.on_compile_start(watch.on_start)
        dynamo_callback.on_compile_end(watch.on_end)
        return watch

    def fixed_batch_runner(self, model: Any, batch: Any) -> Callable[[int], None]:
        on_device = data_facts.map_leaves(_as_fit_gives_it, batch)
        model.make_train_function()
        model.train()  # `fit` leaves the modules in evaluation mode

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

    def compiled_bytes(self, model: Any, batch: Any) -> int | None:
        """Not known: PyTorch's compiler states no memory of a program."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            return True
        message = str(error).lower()
        return isinstance(error, Exception) and any(words in message for words in _OUT_OF_MEMORY)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself: Keras's "auto" is eager on PyTorch."""
        return function

    def streaming(self, elements: int) -> tuple[Callable[[], object], int]:
        array = torch.zeros(elements, dtype=torch.float32, device=core.get_device())

        def stream() -> None:
            for _ in range(_STREAM_PASSES):
                array.mul_(0.999)
            self.synchronize(array)

        return stream, _STREAM_PASSES * 2 * array.nbytes

    def all_reduce(self, elements: int) -> Callable[[], object] | None:
        return None


def _as_fit_gives_it(leaf: Any) -> Any:
    """An array as a tensor on the device, floating point in Keras's own type, as `fit` makes it from arrays."""
    array = np.asarray(leaf)
    dtype = keras.config.floatx() if array.dtype.kind == "f" else None
    return keras.ops.convert_to_tensor(array, dtype=dtype)


BACKEND = TorchBackend()
