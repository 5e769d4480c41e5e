"""An encoder: every position attends to every other one, without a mask. Its length divides by 128."""

import keras
import numpy as np
from keras import layers

LENGTH, WIDTH, HEADS, CLASSES = 128, 16, 2, 4


def build_model(blocks=3, causal=False):
    x = inputs = keras.Input((LENGTH, WIDTH))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=causal)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def train_data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, LENGTH, WIDTH)).astype("float32")
    return {"x": x, "y": rng.integers(0, CLASSES, 4), "batch_size": 2, "shuffle": False}
