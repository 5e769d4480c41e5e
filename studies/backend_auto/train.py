"""A training that runs on every backend, with SGD and without dropout, so that losses can be compared."""

import argparse

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=["mlp", "resnet20", "decoder", "wide"])
parser.add_argument("--epochs", type=int, default=20)
given = parser.parse_args()


def mlp():
    """Kernel launches take longer than the arithmetic."""
    inputs = keras.Input((32,))
    x = layers.Dense(128, activation="relu")(inputs)
    x = layers.Dense(128, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def wide():
    """Large matrix products, for which every backend calls a library."""
    inputs = keras.Input((1024,))
    x = inputs
    for _ in range(4):
        x = layers.Dense(2048, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def block(x, filters, stride):
    """Two convolutions with a shortcut (He et al. 2016, option B)."""
    y = layers.Conv2D(filters, 3, stride, padding="same")(x)
    y = layers.Activation("relu")(layers.GroupNormalization(8)(y))
    y = layers.Conv2D(filters, 3, padding="same")(y)
    y = layers.GroupNormalization(8)(y)
    if stride > 1:
        x = layers.Conv2D(filters, 1, stride)(x)
    return layers.Activation("relu")(layers.Add()([x, y]))


def resnet20():
    """ResNet-20 on 32 x 32 images. With GroupNorm, losses do not depend on the split into micro-batches."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Activation("relu")(layers.Conv2D(16, 3, padding="same")(inputs))
    for filters in (16, 32, 64):
        for index in range(3):
            x = block(x, filters, 2 if index == 0 and filters > 16 else 1)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def decoder(length=64, width=64, vocabulary=128):
    """Two blocks of causal attention."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    return keras.Model(inputs, layers.Dense(vocabulary)(x))


def data(name):
    """Return (x, y), one epoch of whole batches."""
    rng = np.random.default_rng(3)
    if name in ("mlp", "wide"):
        x = rng.normal(size=(4096 if name == "mlp" else 2048, 32 if name == "mlp" else 1024)).astype("float32")
        return x, np.tanh(x[:, :8]).sum(axis=1, keepdims=True).astype("float32")
    if name == "resnet20":
        return rng.normal(size=(512, 32, 32, 3)).astype("float32"), rng.integers(0, 10, 512)
    tokens = rng.integers(0, 128, (512, 65))
    return tokens[:, :-1].astype("int32"), tokens[:, 1:].astype("int32")


keras.utils.set_random_seed(3)
model = {"mlp": mlp, "resnet20": resnet20, "decoder": decoder, "wide": wide}[given.model]()
regression = given.model in ("mlp", "wide")
loss = "mse" if regression else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(1e-3 if given.model == "wide" else 1e-2), loss)
x, y = data(given.model)
history = model.fit(x, y, batch_size=64, epochs=given.epochs, verbose=0)
print("loss", history.history["loss"][-1])
