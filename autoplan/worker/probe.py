"""This machine's real rates, measured in a few seconds -> a hardware profile (a plain dict).

Every rate is what a compiled program achieved, not a peak from a data sheet: efficiency is already in it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median
from typing import Any

from autoplan.errors import WorkerError

PROFILE_SCHEMA = 1
DTYPES = ("float32", "bfloat16", "float16")

_ENOUGH_SECONDS = 0.15
_LONGEST_CALL_SECONDS = 0.2
_LEAST_CALLS = 3
_MOST_CALLS = 200

# Square products that fill a device of each kind without taking it long; the smaller one decides whether the larger
# one is affordable.
_MATMUL_SIZES = {"cpu": (256, 1024), "gpu": (1024, 8192), "tpu": (1024, 8192)}
_STREAM_ELEMENTS = {"cpu": 2**24, "gpu": 2**27, "tpu": 2**27}
_STREAM_PASSES = 4
_CHAIN = (8, 72)
_REDUCED_ELEMENTS = (2**10, 2**22)


def probe(backend: str) -> dict[str, Any]:
    """Measure the first device of this process, and an all-reduce if it has several.

    Returns a profile: `matmul_flops_per_second` {dtype: {size: rate}} (an empty mapping where the device refuses a
    dtype), `memory_bytes_per_second`, `kernel_launch_seconds`, `dispatch_seconds`, `usable_memory_bytes` (None where
    the runtime sets no limit), `all_reduce` [{devices, payload_bytes, seconds}], with platform, device kind, number of
    devices, versions and date. Takes under six seconds after the backend's import. WorkerError for a backend that it
    can't measure with.
    """
    if backend != "jax":
        raise WorkerError(
            f"the probe measures with JAX, and was asked for {backend}; run it with KERAS_BACKEND=jax, "
            "or describe this machine in a YAML file"
        )
    return _probe_jax()


def _probe_jax() -> dict[str, Any]:
    import jax

    started = time.perf_counter()
    device = jax.local_devices()[0]
    kind = device.platform if device.platform in _MATMUL_SIZES else "gpu"
    limits = device.memory_stats() or {}
    return {
        "schema": PROFILE_SCHEMA,
        "backend": "jax",
        "platform": kind,
        "device_kind": device.device_kind,
        "devices": jax.local_device_count(),
        "matmul_flops_per_second": {dtype: _matmul_rates(dtype, _MATMUL_SIZES[kind]) for dtype in DTYPES},
        "memory_bytes_per_second": _stream_rate(_STREAM_ELEMENTS[kind]),
        "kernel_launch_seconds": _kernel_launch_seconds(),
        "dispatch_seconds": _dispatch_seconds(),
        "usable_memory_bytes": limits.get("bytes_limit"),
        "all_reduce": _all_reduces(jax.local_devices()),
        "versions": {"python": platform.python_version(), "jax": version("jax"), "jaxlib": version("jaxlib")},
        "date": datetime.now(UTC).date().isoformat(),
        "probe_seconds": time.perf_counter() - started,
    }


def median_seconds(call: Callable[[], object]) -> float:
    """The median duration of `call` after two unmeasured ones (compilation, caches), over 3 to 200 calls.

    `call` returns only when its work is done. Stops after 0.15 s.
    """
    call()
    call()
    durations: list[float] = []
    while len(durations) < _LEAST_CALLS or (sum(durations) < _ENOUGH_SECONDS and len(durations) < _MOST_CALLS):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return median(durations)


def _finishing(program: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
    """A call of a compiled program that returns when the device is done."""
    return lambda: program(*arguments).block_until_ready()


def _matmul_rates(dtype: str, sizes: Sequence[int]) -> dict[str, float]:
    """FLOP/s of square products by size, 2n^3 operations each, ascending; stops before one that would take too long.

    Where a backend has no product of a dtype it converts to another one, and that is what is measured: on CPUs XLA
    runs bfloat16 and float16 products in float32, at about the float32 rate.
    """
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul)
    rates: dict[str, float] = {}
    for size in sizes:
        flops = 2 * size**3
        if rates and flops / max(rates.values()) > _LONGEST_CALL_SECONDS:
            break
        operand = jnp.full((size, size), 0.5, dtype)
        try:
            rates[str(size)] = flops / median_seconds(_finishing(product, operand, operand))
        except (RuntimeError, NotImplementedError):
            # A device that refuses a dtype has no rate for it; the profile shows an empty mapping.
            break
    return rates


def _stream_rate(elements: int) -> float:
    """Bytes a second of reading and writing a float32 array larger than the caches, over and over in one program.

    In one program and in place, so that neither a copy nor the first touch of fresh memory is counted.
    """
    import jax
    import jax.numpy as jnp

    def passes(x: Any) -> Any:
        return jax.lax.fori_loop(0, _STREAM_PASSES, lambda _, a: a * 0.999 + 1.0, x)

    in_place = jax.jit(passes, donate_argnums=0)
    array = jnp.zeros((elements,), jnp.float32)

    def stream() -> None:
        nonlocal array
        array = in_place(array).block_until_ready()

    return _STREAM_PASSES * 2 * array.nbytes / median_seconds(stream)


def _kernel_launch_seconds() -> float:
    """What one more kernel costs in a program: a chain of 8x8 products, too small to take time of their own."""
    import jax
    import jax.numpy as jnp

    def chain(length: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(length):
                x = jnp.matmul(x, x)
            return x

        return jax.jit(run)

    start = jnp.eye(8)
    short, long = (median_seconds(_finishing(chain(length), start)) for length in _CHAIN)
    return max(long - short, 0.0) / (_CHAIN[1] - _CHAIN[0])


def _dispatch_seconds() -> float:
    """The host's work for one call of a compiled program: many calls are started, and waited for once."""
    import jax
    import jax.numpy as jnp

    add = jax.jit(lambda x: x + 1)
    calls = 50

    def burst() -> None:
        value = jnp.float32(0)
        for _ in range(calls):
            value = add(value)
        value.block_until_ready()

    return median_seconds(burst) / calls


def _all_reduces(devices: Sequence[Any]) -> list[dict[str, float]]:
    """Seconds of an all-reduce over all devices, for a small and a large payload; empty for one device."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(devices)
    if count == 1:
        return []
    mesh = Mesh(devices, ("data",))
    over_data = PartitionSpec("data")
    total = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=over_data, out_specs=over_data)
    )
    found = []
    for elements in _REDUCED_ELEMENTS:
        array = jax.device_put(jnp.ones((count * elements,), jnp.float32), NamedSharding(mesh, over_data))
        seconds = median_seconds(_finishing(total, array))
        found.append({"devices": count, "payload_bytes": 4 * elements, "seconds": seconds})
    return found
