"""Siamese network with a contrastive loss over pairs: shared layers, BatchNormalization, a loss from a closure."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
classes = rng.integers(0, 4, (237, 2))
centres = rng.normal(size=(4, 12, 12))
pairs = (centres[classes] + 0.5 * rng.normal(size=(237, 2, 12, 12))).astype("float32")
labels = (classes[:, 0] != classes[:, 1]).astype("float32")


def euclidean_distance(vects):
    x, y = vects
    sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


def contrastive_loss(margin=1):
    def loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * square_pred + y_true * margin_square)

    return loss


inputs = keras.Input((12, 12, 1))
x = layers.BatchNormalization()(inputs)
x = layers.Conv2D(4, (3, 3), activation="tanh")(x)
x = layers.AveragePooling2D(pool_size=(2, 2))(x)
x = layers.Flatten()(x)
x = layers.BatchNormalization()(x)
embedding_network = keras.Model(inputs, layers.Dense(10, activation="tanh")(x))

input_1, input_2 = keras.Input((12, 12, 1)), keras.Input((12, 12, 1))
merged = layers.Lambda(euclidean_distance, output_shape=(1,))([embedding_network(input_1), embedding_network(input_2)])
merged = layers.BatchNormalization()(merged)
siamese = keras.Model(inputs=[input_1, input_2], outputs=layers.Dense(1, activation="sigmoid")(merged))
siamese.compile(loss=contrastive_loss(margin=1), optimizer="RMSprop", metrics=["accuracy"])
siamese.fit([pairs[:, 0], pairs[:, 1]], labels, batch_size=16, epochs=2, verbose=2)
