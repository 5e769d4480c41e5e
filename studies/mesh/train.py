"""A regression network without dropout that prints the loss of each epoch; with `--samples 256`, of each update."""

import argparse
import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=8192)
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

keras.utils.set_random_seed(17)
rng = np.random.default_rng(17)
x = rng.normal(size=(args.samples, 64)).astype("float32")
y = np.tanh(x[:, :8]).sum(axis=1, keepdims=True).astype("float32")

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss="mse")
history = model.fit(x, y, batch_size=256, epochs=args.epochs, verbose=0)
# The sharding of the weights shows how many devices trained.
devices = len(model.trainable_variables[0].value.sharding.device_set)
print("trained:", json.dumps({"devices": devices, "losses": history.history["loss"]}))
