"""A script that sets a policy itself, clears the session first, and keeps its last layer in float32."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

keras.utils.clear_session()
keras.config.set_dtype_policy("mixed_bfloat16")
keras.utils.set_random_seed(13)

x = np.random.default_rng(13).normal(size=(1024, 32)).astype("float32")
y = x.sum(axis=1, keepdims=True)

model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(1, dtype="float32"),
    ]
)
model.compile(optimizer="adam", loss="mse")
model.fit(x, y, batch_size=32, epochs=2, verbose=2)
print("compute dtype", model.layers[0].compute_dtype)
