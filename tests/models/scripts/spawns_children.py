"""Starts loader processes of its own, one of them in a session of its own, and does not wait for them."""

import os
import subprocess
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

SECONDS = os.environ.get("CHILD_SECONDS", "30")
sleeper = [sys.executable, "-c", f"import time; time.sleep({SECONDS})  # loader of spawns_children"]
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]

x = np.ones((1024, 8), dtype="float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, x[:, :1], batch_size=32, epochs=1, verbose=2)
print("children", *(child.pid for child in children))
