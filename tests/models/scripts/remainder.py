"""1,000 samples in batches of 64: the last batch of every epoch has 40."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

keras.utils.set_random_seed(16)
x = np.random.default_rng(16).normal(size=(1000, 16)).astype("float32")
y = x.prod(axis=1, keepdims=True)

model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", weighted_metrics=["mae"])
model.fit(x, y, batch_size=64, epochs=2, verbose=2)
