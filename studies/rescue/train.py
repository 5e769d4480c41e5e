"""A regression network with wide layers between narrow ones, so that activations take most of its memory.

At its end it prints the peak memory of its process.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16384)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--batch-size", type=int, default=2048)
parser.add_argument("--accumulation", type=int, default=None)
parser.add_argument("--precision", default="float32")
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

keras.utils.set_random_seed(7)
keras.config.set_dtype_policy(args.precision)
rng = np.random.default_rng(7)
x = rng.normal(size=(args.samples, 4)).astype("float32")
y = np.tanh(x).sum(axis=1, keepdims=True).astype("float32")

h = inputs = keras.Input((4,))
for _ in range(args.layers):
    h = keras.layers.Dense(4)(keras.layers.Dense(args.width, activation="relu")(h))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(h))
model.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=args.accumulation), "mse")
history = model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs, verbose=0)

# Peak resident memory in KiB, on Linux only. getrusage would include the memory of the parent before the fork.
status = Path("/proc/self/status").read_text()
peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
print("ended:", json.dumps({"peak_bytes": peak_bytes, "loss": history.history["loss"][-1]}))
