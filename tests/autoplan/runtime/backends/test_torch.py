"""What only PyTorch has: its own shuffling, its loaders, its compiler's cache, its words for what it lacks.

In a process of its own, for a process has one backend.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

SHARED = """
    import json, sys
    from pathlib import Path
    import keras, numpy as np, torch
    from torch.utils.data import DataLoader, TensorDataset
    from autoplan.runtime import backends
    from autoplan.runtime.data import data_facts, rebatch
    from autoplan.runtime.optimizers import adapt_optimizer
    from cost_models.config import Batch

    BACKEND = backends.get("torch")
    SCRIPT, CUT = Batch(32), Batch(8, accumulation=4)

    def arrays(rows):
        x = np.random.default_rng(0).standard_normal((rows, 8), dtype="float32")
        return x, np.tanh(x[:, :1])

    def dense():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    def difference(arguments, make=dense):
        weights = []
        for wanted in (SCRIPT, CUT):
            model = make()
            changed = rebatch.rebatched(arguments, data_facts.describe(arguments), SCRIPT, wanted, can_pad=True)
            model.optimizer = adapt_optimizer(model.optimizer, SCRIPT, wanted)
            torch.manual_seed(3)
            model.fit(**changed, epochs=3, verbose=0)
            weights.append([keras.ops.convert_to_numpy(one) for one in model.trainable_variables])
        return max(float(abs(own - cut).max()) for own, cut in zip(*weights))
"""


def printed(code, *arguments):
    """Run code after the shared lines, and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SHARED) + textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen():
    return printed(
        """
        def loader(rows, **more):
            x, y = map(torch.as_tensor, arrays(rows))
            return {"x": DataLoader(TensorDataset(x, y), batch_size=32, **more), "shuffle": False}

        def shuffled(rows):
            x, y = arrays(rows)
            return {"x": x, "y": y, "batch_size": 32}

        def says(message):
            return BACKEND.is_out_of_memory(RuntimeError(message))

        BACKEND.configure_devices(1)
        print(json.dumps({
            "arrays": {rows: difference(shuffled(rows)) for rows in (96, 92, 70)},
            "loader": {rows: difference(loader(rows, shuffle=True)) for rows in (96, 92, 70)},
            "workers": difference(loader(96, shuffle=True, num_workers=2)),
            "out_of_memory": [
                says("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"),
                says("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
                says("MPS backend out of memory (MPS allocated: 6.00 GB)"),
                says("[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory"),
                BACKEND.is_out_of_memory(torch.cuda.OutOfMemoryError("no room")),
            ],
            "something_else": [
                says("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
                says("CUDA error: device-side assert triggered"),
            ],
            "devices": BACKEND.devices(),
        }))
        """
    )


@pytest.mark.parametrize("rows", ["96", "92", "70"])
@pytest.mark.parametrize("kind", ["arrays", "loader"])
def test_shuffled_data_make_the_same_updates(seen, kind, rows):
    assert seen[kind][rows] < 1e-6


def test_loaders_with_workers_make_the_same_updates(seen):
    assert seen["workers"] < 1e-6


def test_messages_that_mean_out_of_memory_are_recognized(seen):
    assert seen["out_of_memory"] == [True] * 5
    assert seen["something_else"] == [False] * 2


def test_one_simulated_device_is_the_cpu(seen):
    assert seen["devices"] == [1, "cpu", None]


@pytest.mark.slow
def test_cached_programs_count_with_their_original_compile_time(tmp_path):
    found = printed(
        """
        import time

        BACKEND.enable_compilation_cache(Path(sys.argv[1]))
        x, y = arrays(32)
        parts = []
        for _ in range(2):
            watch = BACKEND.watch_compilation()
            started = time.perf_counter()
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=True)
            model.fit(x, y, batch_size=32, verbose=0)
            fit_seconds = time.perf_counter() - started
            parts.append([watch.compilations, watch.cache_hits, watch.cache_misses, watch.compile_seconds, fit_seconds])
            torch._dynamo.reset()
        print(json.dumps(parts))
        """,
        tmp_path / "cache",
    )
    (compilations, _, misses, compile_seconds, fit_seconds), warm = found
    assert compilations > 0
    assert misses > 0
    assert 0 < compile_seconds < fit_seconds
    assert any((tmp_path / "cache").rglob("*"))
    compilations_again, hits, misses_again, compile_seconds, fit_seconds = warm
    assert (
        0 < compilations_again <= compilations
    )  # a program that comes whole needs no compilation for its backward part
    assert (hits > 0, misses_again) == (True, 0)
    assert compile_seconds > fit_seconds  # what the cache saved counts
