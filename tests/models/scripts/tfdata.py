"""Training from a tf.data pipeline that shuffles, batches and prefetches."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(6)
x = rng.normal(size=(1024, 20)).astype("float32")
y = x[:, :5].mean(axis=1, keepdims=True)


def scale(features, target):
    return features / 2.0, target


train = (
    tf.data.Dataset.from_tensor_slices((x[:896], y[:896]))
    .shuffle(896, seed=1)
    .map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    .batch(16)
    .prefetch(tf.data.AUTOTUNE)
)
validation = tf.data.Dataset.from_tensor_slices((x[896:], y[896:])).map(scale).batch(64)

keras.utils.set_random_seed(6)
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
model.fit(train, validation_data=validation, epochs=2, verbose=2)
