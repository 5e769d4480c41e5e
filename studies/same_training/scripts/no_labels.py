"""Reconstruction without labels: the model's own loss over its input, and a last batch of an odd number of rows."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops


class Reconstructor(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = layers.Dense(6, activation="tanh"), layers.Dense(20)

    def call(self, x):
        return self.decoder(self.encoder(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(x - y_pred))


keras.utils.set_random_seed(13)
x = np.random.default_rng(13).normal(size=(701, 20)).astype("float32")
model = Reconstructor()
model.compile(optimizer="adam")
model.fit(x, batch_size=32, epochs=2, verbose=2)
