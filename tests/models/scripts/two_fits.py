"""Pretrain an autoencoder, then train a classifier on its encoder: two fits, the second one the long one."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(12)
x = np.random.default_rng(12).normal(size=(1024, 30)).astype("float32")
labels = (x[:, 0] > 0).astype("int32")

encoder = keras.Sequential(
    [keras.Input((30,)), layers.Dense(48, activation="relu"), layers.Dense(12, activation="relu")]
)
autoencoder = keras.Sequential([encoder, layers.Dense(48, activation="relu"), layers.Dense(30)])
autoencoder.compile(optimizer="adam", loss="mse")
autoencoder.fit(x, x, batch_size=128, epochs=1, verbose=2)

classifier = keras.Sequential([encoder, layers.Dense(2, activation="softmax")])
classifier.compile(
    optimizer=keras.optimizers.Adam(1e-3, gradient_accumulation_steps=4), loss="sparse_categorical_crossentropy"
)
classifier.fit(x, labels, batch_size=16, epochs=2, verbose=2)
print("iterations", int(keras.ops.convert_to_numpy(classifier.optimizer.iterations)))
