"""Measures the rates of this machine in a few seconds, and returns them as a `HardwareProfile`.

Each rate is achieved by a backend with operations as Keras runs them. It is not a peak of a data sheet, because it
includes the efficiency. A machine therefore has one profile per backend.
"""

from __future__ import annotations

import mmap
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np

from autoplan.errors import WorkerError
from autoplan.machine import hardware_profile, processes, this_machine
from autoplan.machine.hardware_profile import AllReduceTime, HardwareProfile
from autoplan.runtime import backends
from autoplan.runtime.backends import Backend

DTYPES = ("float32", "bfloat16", "float16")

_ENOUGH_SECONDS = 0.15
_LONGEST_CALL_SECONDS = 0.2
_LEAST_CALLS = 3
_MOST_CALLS = 200

# Square matrix products that fill a device of each kind and are fast; the smaller one decides whether the larger one is
# measured.
_MATMUL_SIZES = {"cpu": (256, 1024), "gpu": (1024, 8192), "tpu": (1024, 8192)}
_STREAM_ELEMENTS = {"cpu": 2**24, "gpu": 2**27, "tpu": 2**27}
_CHAIN = (8, 72)
_BURST_CALLS = 50
_REDUCED_ELEMENTS = (2**10, 2**22)
_FRESH_BYTES = 2**26
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20}
_FIT_LAYERS = (1, 24)
_FIT_MICRO_STEPS = 200
_FIT_ROUNDS = 3
_KERNELS_A_VARIABLE = 3
"""Kernels of a dense layer with two variables: product and addition; two products and a sum backward; two updates."""
_TOUCHED_BYTES = 2**20
_FRESH_MAPPINGS = 5


def measure_rates(name: str) -> HardwareProfile:
    """Measure the first device of this process with the backend of that name, and an all-reduce over all devices.

    Takes less than eight seconds after the import of the backend.

    WorkerError if Keras runs on another backend in this process.
    """
    if keras.backend.backend() != name:
        raise WorkerError(
            f"the probe was requested for {name}, but Keras runs on {keras.backend.backend()} in this process; "
            f"set KERAS_BACKEND={name} before the first import of Keras"
        )
    backend = backends.get(name)
    started, load_average = time.perf_counter(), this_machine.load_average()
    count, device_kind, usable_bytes = backend.devices()
    kind = backend.platform()
    launch_seconds, dispatch_seconds = _kernel_launch_seconds(backend), _dispatch_seconds(backend)
    a_fit, a_variable = _host_seconds(launch_seconds, dispatch_seconds) if name == "jax" else (None, None)
    return {
        "schema": hardware_profile.SCHEMA,
        "backend": name,
        "platform": kind,
        "device_kind": device_kind,
        "devices": count,
        "matmul_flops_per_second": {dtype: _matmul_rates(backend, dtype, _MATMUL_SIZES[kind]) for dtype in DTYPES},
        "memory_bytes_per_second": _stream_rate(backend, _STREAM_ELEMENTS[kind]),
        "kernel_launch_seconds": launch_seconds,
        "dispatch_seconds": dispatch_seconds,
        "host_micro_step_seconds": a_fit,
        "host_variable_seconds": a_variable,
        "fresh_page_bytes_per_second": _fresh_page_rate() if kind == "cpu" else None,
        "processors": this_machine.cpu_count() if kind == "cpu" else None,
        "cache_bytes": _cache_bytes() if kind == "cpu" else None,
        "load_average": load_average,
        "usable_memory_bytes": usable_bytes,
        "all_reduce": _all_reduces(backend, count),
        "versions": {"python": platform.python_version(), "keras": keras.version(), name: backend.version()},
        "date": datetime.now(UTC).date().isoformat(),
        "probe_seconds": time.perf_counter() - started,
    }


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median duration of 3 to 200 calls, after two calls that are not measured (compilation, caches).

    `call` must block until its work is done. Stops after 0.15 s.
    """
    call()
    call()
    durations: list[float] = []
    while len(durations) < _LEAST_CALLS or (sum(durations) < _ENOUGH_SECONDS and len(durations) < _MOST_CALLS):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return median(durations)


def _blocking(backend: Backend, program: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
    """Return a call of a program that blocks until the device is done."""
    return lambda: backend.synchronize(program(*arguments))


def _matmul_rates(backend: Backend, dtype: str, sizes: Sequence[int]) -> dict[str, float]:
    """Return the FLOP/s of square matrix products (2n^3 operations) by size; large slow products are skipped.

    A backend without products of a dtype converts to another dtype, and the rate includes that: on CPUs XLA computes
    bfloat16 and float16 products in float32, at about the float32 rate.
    """
    product = backend.compiled(keras.ops.matmul)
    rates: dict[str, float] = {}
    for size in sizes:
        flops = 2 * size**3
        if rates and flops / max(rates.values()) > _LONGEST_CALL_SECONDS:
            break
        try:
            operand = keras.ops.full((size, size), 0.5, dtype=dtype)
            rates[str(size)] = flops / median_seconds(_blocking(backend, product, operand, operand))
        except backend.unsupported_errors:
            # A device that does not support a dtype has no rate for it; the profile contains an empty mapping.
            break
    return rates


def _stream_rate(backend: Backend, elements: int) -> float:
    """Return the bytes per second of reading and writing float32 arrays that are larger than the caches."""
    stream, moved_bytes = backend.streaming(elements)
    return moved_bytes / median_seconds(stream)


def _fresh_page_rate() -> float | None:
    """Return the bytes per second at which the kernel maps fresh pages, without the time of writing to them.

    All CPU cores touch pages at once, as XLA's threads do. None if the C library is not glibc, or if the cost is not
    measurable.
    """
    if not processes.can_keep_freed_memory():
        return None
    first: list[float] = []
    again: list[float] = []
    with ThreadPoolExecutor(this_machine.cpu_count()) as threads:
        for _ in range(_FRESH_MAPPINGS):
            with mmap.mmap(-1, _FRESH_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
                for seconds in (first, again):
                    start = time.perf_counter()
                    list(
                        threads.map(
                            lambda at, mapped=mapped: _touch(mapped, at), range(0, _FRESH_BYTES, _TOUCHED_BYTES)
                        )
                    )
                    seconds.append(time.perf_counter() - start)
    taken = median(first) - median(again)
    return _FRESH_BYTES / taken if taken > 0 else None


def _touch(mapped: mmap.mmap, start: int) -> None:
    """Write to a part of a mapping. It is a function because a mapping cannot be closed while an array refers to it."""
    np.frombuffer(mapped, np.uint8, _TOUCHED_BYTES, start).fill(1)


def _kernel_launch_seconds(backend: Backend) -> float:
    """Return the time per operation of a program, measured with a chain of 8x8 products."""

    def chain(length: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(length):
                x = keras.ops.matmul(x, x)
            return x

        return backend.compiled(run)

    start = keras.ops.eye(8)
    short, long = (median_seconds(_blocking(backend, chain(length), start)) for length in _CHAIN)
    return max(long - short, 0.0) / (_CHAIN[1] - _CHAIN[0])


def _dispatch_seconds(backend: Backend) -> float:
    """Return the host time of one call of a program: many calls are started, and waited for once."""
    add = backend.compiled(lambda x: x + 1)
    start = keras.ops.zeros((), dtype="float32")

    def burst() -> None:
        value = start
        for _ in range(_BURST_CALLS):
            value = add(value)
        backend.synchronize(value)

    return median_seconds(burst) / _BURST_CALLS


def _host_seconds(launch_seconds: float, dispatch_seconds: float) -> tuple[float, float]:
    """Return the host time of `fit` per micro-step, and per variable of model and optimizer.

    Measured with two chains of tiny layers, which have 4 and 50 variables. The times of their kernels and of the
    program's start are subtracted.
    """
    (few, fewer_seconds), (many, more_seconds) = (_fit_seconds(layers) for layers in _FIT_LAYERS)
    kernels_seconds = _KERNELS_A_VARIABLE * launch_seconds
    variable_seconds = max((more_seconds - fewer_seconds) / (many - few) - kernels_seconds, 0.0)
    rest = fewer_seconds - few * (variable_seconds + kernels_seconds) - dispatch_seconds
    return max(rest, 0.0), variable_seconds


def _fit_seconds(layers: int) -> tuple[int, float]:
    """Return the number of variables and the median seconds per micro-step of a real `fit`, without compilation."""
    model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(layers))])
    model.compile("sgd", "mse")
    x = np.zeros((4 * _FIT_MICRO_STEPS, 8), "float32")
    seconds = []
    for _ in range(1 + _FIT_ROUNDS):
        start = time.perf_counter()
        model.fit(x, x, batch_size=4, verbose=0)
        seconds.append((time.perf_counter() - start) / _FIT_MICRO_STEPS)
    return len(model.variables) + len(model.optimizer.variables), median(seconds[1:])


def _cache_bytes() -> int | None:
    """Return the bytes of the last-level cache; None if the kernel does not report it."""
    levels = [(int(_text(folder / "level") or 0), _text(folder / "size")) for folder in _CACHES.glob("index*")]
    size = max(levels, default=(0, ""))[1]
    return int(size[:-1]) * _UNITS[size[-1]] or None if size and size[-1] in _UNITS else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _all_reduces(backend: Backend, devices: int) -> list[AllReduceTime]:
    """Return the seconds of an all-reduce over all devices for a small and a large payload; empty on one device."""
    found: list[AllReduceTime] = []
    for elements in _REDUCED_ELEMENTS:
        reduce = backend.all_reduce(elements)
        if reduce is not None:
            found.append({"devices": devices, "payload_bytes": 4 * elements, "seconds": median_seconds(reduce)})
    return found
