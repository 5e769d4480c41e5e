"""A subclassed model with a layer of its own, neither of them registered with Keras."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops


class GatedDense(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 2 * self.units), initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape=(2 * self.units,), initializer="zeros", name="bias")

    def call(self, x):
        value, gate = ops.split(ops.matmul(x, self.kernel) + self.bias, 2, axis=-1)
        return value * ops.sigmoid(gate)


class Regressor(keras.Model):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.hidden = [GatedDense(width) for _ in range(depth)]
        self.norm = keras.layers.LayerNormalization()
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        for layer in self.hidden:
            x = layer(x)
        return self.head(self.norm(x))


keras.utils.set_random_seed(4)
x = np.random.default_rng(4).normal(size=(2048, 40)).astype("float32")
y = np.abs(x).mean(axis=1, keepdims=True)

model = Regressor()
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
model.fit(x, y, batch_size=32, epochs=2, verbose=2)
