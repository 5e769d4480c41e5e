"""A regression network that trains for a minute or more on two cores.

It accumulates the gradients of four micro-batches of 32, as for a machine with little memory.
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=65_536)
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()

keras.utils.set_random_seed(9)
rng = np.random.default_rng(9)
x = rng.normal(size=(args.samples, 64)).astype("float32")
y = np.sin(x @ rng.normal(size=(64, 8)) / 8).sum(axis=1, keepdims=True).astype("float32")

model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(256, activation="relu"),
        layers.Dense(256, activation="relu"),
        layers.Dense(128, activation="relu"),
        layers.Dense(1),
    ]
)
model.compile(optimizer=keras.optimizers.AdamW(1e-3, gradient_accumulation_steps=4), loss="mse")
started = time.perf_counter()
history = model.fit(x, y, batch_size=32, epochs=args.epochs, verbose=0)
print(f"fit seconds: {time.perf_counter() - started:.3f}")
print(f"last loss: {history.history['loss'][-1]:.6g}")
