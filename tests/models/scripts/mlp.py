"""A regression network whose slow settings can be asked for on the command line."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accumulation", type=int, default=None)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--jit-compile", choices=["auto", "true", "false"], default="auto")
args = parser.parse_args()

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
x = rng.normal(size=(args.samples, 32)).astype("float32")
y = np.tanh(x[:, :8]).sum(axis=1, keepdims=True).astype("float32")

model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, gradient_accumulation_steps=args.accumulation),
    loss="mse",
    jit_compile={"auto": "auto", "true": True, "false": False}[args.jit_compile],
)
history = model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs, verbose=0)
print("loss", history.history["loss"][-1])
