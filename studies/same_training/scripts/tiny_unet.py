"""Segmentation with a small U-Net from a PyDataset: separable convolutions, BatchNormalization, a label for each pixel."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers


class Pets(keras.utils.PyDataset):
    def __init__(self, count, batch_size, seed, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(seed)
        self.masks = (rng.random((count, 4, 4)) > 0.5).repeat(4, axis=1).repeat(4, axis=2).astype("uint8")
        self.images = (self.masks[..., None] + 0.3 * rng.normal(size=(count, 16, 16, 3))).astype("float32")
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.images[rows], self.masks[rows]


def get_model(num_classes):
    inputs = keras.Input(shape=(16, 16, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous = x
    x = layers.SeparableConv2D(16, 3, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.add([x, layers.Conv2D(16, 1, strides=2, padding="same")(previous)])
    previous = x
    for filters in (16, 8):
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        x = layers.add([x, residual])
        previous = x
    return keras.Model(inputs, layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x))


keras.utils.set_random_seed(10)
model = get_model(2)
model.compile(optimizer=keras.optimizers.Adam(1e-4), loss="sparse_categorical_crossentropy")
model.fit(Pets(213, 16, seed=1), epochs=2, validation_data=Pets(32, 16, seed=2), verbose=2)
