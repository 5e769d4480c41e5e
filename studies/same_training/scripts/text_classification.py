"""Text classification: tokens, an embedding, 1-D convolutions, a binary output."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)
tokens = rng.integers(0, 500, (701, 60))
labels = (tokens[:, :30].mean(axis=1) > 250).astype("float32")

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(500, 16)(inputs)
x = layers.Conv1D(16, 7, padding="valid", activation="relu", strides=3)(x)
x = layers.Conv1D(16, 3, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(16, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(tokens, labels, batch_size=32, epochs=3, verbose=2)
