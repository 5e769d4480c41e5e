"""A generator without an end that goes over its samples again and again: dictionaries, sample weights, a short batch."""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

SAMPLES, BATCH = 250, 32
STEPS = -(-SAMPLES // BATCH)


def batches(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SAMPLES, 8)).astype("float32")
    y = np.tanh(x[:, :1])
    weight = np.linspace(0.5, 1.5, SAMPLES).astype("float32")
    while True:
        for start in range(0, SAMPLES, BATCH):
            rows = slice(start, start + BATCH)
            yield {"signal": x[rows], "twice": 2 * x[rows]}, y[rows], weight[rows]


keras.utils.set_random_seed(22)
signal, twice = keras.Input((8,), name="signal"), keras.Input((8,), name="twice")
hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Add()([signal, twice]))
model = keras.Model([signal, twice], keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(batches(1), steps_per_epoch=STEPS, epochs=2, validation_data=batches(2), validation_steps=STEPS, verbose=0)
weights = [float(np.abs(keras.ops.convert_to_numpy(w)).sum()) for w in model.trainable_variables]
print(json.dumps({"updates": int(model.optimizer.iterations), "weights": weights}))
