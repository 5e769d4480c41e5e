"""Trains a model, freezes its first layers, puts low-rank adapters on the others, and trains those: two fits."""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

keras.utils.set_random_seed(25)
x = np.random.default_rng(25).normal(size=(384, 16)).astype("float32")
labels = (x[:, 0] > 0).astype("int32")

base = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(32, "relu")])
first = keras.Sequential([base, keras.layers.Dense(16)])
first.compile("sgd", "mse")
first.fit(x, x, batch_size=64, epochs=2, verbose=0)

base.layers[0].trainable = False
base.layers[1].enable_lora(4)
second = keras.Sequential([base, keras.layers.Dense(2, activation="softmax")])
second.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy")
second.fit(x, labels, batch_size=32, epochs=2, verbose=0)
print(json.dumps({"updates": int(second.optimizer.iterations), "trainable": len(second.trainable_variables)}))
