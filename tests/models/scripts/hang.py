"""Stops for good, waiting for a lock that nobody releases: in every trial, or in those with a bfloat16 policy."""

import argparse
import os
import threading

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--when", choices=["trial", "bfloat16"], default="trial")
args = parser.parse_args()

never_released = threading.Lock()
never_released.acquire()


class Waits(keras.layers.Layer):
    def build(self, shape):
        if os.environ.get("AUTOPLAN_TRIAL") if args.when == "trial" else self.compute_dtype == "bfloat16":
            never_released.acquire()

    def call(self, x):
        return x


x = np.ones((4096, 8), dtype="float32")
model = keras.Sequential([keras.Input((8,)), Waits(), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, x[:, :1], batch_size=32, epochs=1, verbose=2)
