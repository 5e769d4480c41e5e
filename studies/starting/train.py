"""A training that checks a product on all cores and prints how it was started and how many threads it has."""

import sys
from pathlib import Path

import keras
import numpy as np

# Starts the thread pools of NumPy and of the backend, which the parent of a forked process has not started.
matrix = np.ones((2048, 2048), dtype="float32")
product = keras.ops.convert_to_numpy(keras.ops.matmul(matrix, matrix))
if not np.array_equal(product, matrix @ matrix):
    sys.exit("the products differ")
threads = f"{len(list(Path('/proc/self/task').iterdir()))} threads"
if keras.backend.backend() == "torch":
    import torch

    threads += f", {torch.get_num_threads()} for an operation"
print(f"started by {sys.orig_argv[4]}: {threads}", flush=True)

rng = np.random.default_rng(0)
x = rng.standard_normal((2048, 512), dtype="float32")
hidden = [keras.layers.Dense(1024, "relu") for _ in range(3)]
model = keras.Sequential([keras.Input((512,)), *hidden, keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=512, epochs=2, verbose=0)
