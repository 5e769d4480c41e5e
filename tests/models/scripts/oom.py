"""A layer so wide that its activations take gigabytes at this batch size, and a fraction of that at a smaller one."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8192)
parser.add_argument("--width", type=int, default=32768, help="8192 samples x 32768 x 4 bytes = 1 GiB an activation")
parser.add_argument("--samples", type=int, default=16384)
args = parser.parse_args()

keras.utils.set_random_seed(18)
x = np.random.default_rng(18).normal(size=(args.samples, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(args.width, activation="gelu"), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, x.mean(axis=1, keepdims=True), batch_size=args.batch_size, epochs=1, verbose=2)
