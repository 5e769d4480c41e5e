"""A small regression. The micro-batch is the effective batch, so that tuning can only split it."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

keras.utils.set_random_seed(5)
x = np.random.default_rng(5).normal(size=(8192, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(x, x[:, :1] * x[:, 1:2], batch_size=64, epochs=50, verbose=0)
