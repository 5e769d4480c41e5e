"""A training loop written by hand: it never calls fit."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
for step in range(20):
    x = rng.normal(size=(32, 8)).astype("float32")
    loss = model.train_on_batch(x, x.sum(axis=1, keepdims=True))
print("loss", float(loss))
