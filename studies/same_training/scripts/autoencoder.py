"""Convolutional autoencoder that removes noise: two fits of one model."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
clean = np.clip(rng.normal(0.5, 0.2, (487, 7, 7, 1)).repeat(4, axis=1).repeat(4, axis=2), 0, 1).astype("float32")
noisy = np.clip(clean + 0.4 * rng.normal(size=clean.shape), 0, 1).astype("float32")

inputs = layers.Input(shape=(28, 28, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x=clean, y=clean, epochs=3, batch_size=64, shuffle=True, validation_data=(clean[:50], clean[:50]), verbose=2
)
autoencoder.fit(
    x=noisy, y=clean, epochs=2, batch_size=64, shuffle=True, validation_data=(noisy[:50], clean[:50]), verbose=2
)
