"""A learning rate so large that the loss is no number after a few updates."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

x = np.random.default_rng(17).normal(size=(512, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(1e6), loss="mse")
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=32, epochs=2, verbose=2)
