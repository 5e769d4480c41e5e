"""A training whose products need every core; tells who started it and how many threads it then has."""

import sys
from pathlib import Path

import keras
import numpy as np

# Pools that a forked process's parent has not started: NumPy's and the backend's.
matrix = np.ones((2048, 2048), dtype="float32")
product = keras.ops.convert_to_numpy(keras.ops.matmul(matrix, matrix))
if not np.array_equal(product, matrix @ matrix):
    sys.exit("the products differ")
said = f"{len(list(Path('/proc/self/task').iterdir()))} threads"
if keras.backend.backend() == "torch":
    import torch

    said += f", {torch.get_num_threads()} for an operation"
print(f"started by {sys.orig_argv[4]}: {said}", flush=True)

rng = np.random.default_rng(0)
x = rng.standard_normal((2048, 512), dtype="float32")
hidden = [keras.layers.Dense(1024, "relu") for _ in range(3)]
model = keras.Sequential([keras.Input((512,)), *hidden, keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=512, epochs=2, verbose=0)
