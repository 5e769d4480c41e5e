"""The models of the study, one function each, with micro-steps of some milliseconds on a CPU."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


def compiled(inputs: Any, outputs: Any, optimizer: str = "adam", loss: str = "mse") -> Any:
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def convolved(x: Any, filters: int, size: int = 3, strides: int = 1) -> Any:
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def attended(x: Any, width: int, heads: int, *, causal: bool, dropout: float = 0.0) -> Any:
    """A block of a transformer, with pre-normalization."""
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=causal)
    x = layers.Add()([x, y])
    y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dropout(dropout)(layers.Dense(width)(y))])


def mlp_small() -> Any:
    x = inputs = keras.Input((64,))
    for _ in range(3):
        x = layers.Dense(64, "relu")(x)
    return compiled(inputs, layers.Dense(1)(x))


def mlp_wide() -> Any:
    x = inputs = keras.Input((784,))
    for _ in range(3):
        x = layers.Dense(1024, "relu")(x)
    return compiled(inputs, layers.Dense(10, "softmax")(x), "sgd", "categorical_crossentropy")


def convnet() -> Any:
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return compiled(inputs, layers.Dense(10, "softmax")(layers.Flatten()(x)), "sgd", "categorical_crossentropy")


def resnet() -> Any:
    inputs = keras.Input((32, 32, 3))
    x = convolved(inputs, 16)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = layers.BatchNormalization()(
            layers.Conv2D(filters, 3, padding="same", use_bias=False)(convolved(x, filters, strides=strides))
        )
        x = layers.ReLU()(layers.Add()([y, layers.Conv2D(filters, 1, strides=strides)(x)]))
    x = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x))
    return compiled(inputs, x, "rmsprop", "categorical_crossentropy")


def depthwise() -> Any:
    inputs = keras.Input((64, 64, 3))
    x = convolved(inputs, 24, strides=2)
    for filters in (48, 96):
        x = layers.ReLU()(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(x)))
        x = layers.AveragePooling2D(2)(convolved(x, filters, size=1))
    return compiled(
        inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)), "sgd", "categorical_crossentropy"
    )


def unet() -> Any:
    inputs = keras.Input((64, 64, 1))
    first = convolved(inputs, 16)
    x = convolved(layers.MaxPooling2D()(first), 32)
    x = layers.Conv2DTranspose(16, 2, strides=2)(convolved(x, 32))
    x = convolved(layers.Concatenate()([x, first]), 16)
    return compiled(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x), "adam", "binary_crossentropy")


def decoder() -> Any:
    tokens = keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 128)(tokens)
    for _ in range(2):
        x = attended(x, 128, 4, causal=True)
    model = keras.Model(tokens, layers.Dense(1000)(layers.LayerNormalization()(x)))
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def encoder() -> Any:
    tokens = keras.Input((128,), dtype="int32")
    x = attended(layers.Embedding(2000, 96)(tokens), 96, 4, causal=False, dropout=0.1)
    x = layers.GlobalAveragePooling1D()(x)
    return compiled(tokens, layers.Dense(1, "sigmoid")(x), "adam", "binary_crossentropy")


def vit() -> Any:
    pictures = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 4, strides=4)(pictures))
    for _ in range(2):
        x = attended(x, 128, 4, causal=False)
    x = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x))
    return compiled(pictures, x, "adamw", "categorical_crossentropy")


def mixer() -> Any:
    x = inputs = keras.Input((64, 96))
    for _ in range(2):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, "gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(96)(layers.Dense(192, "gelu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, y])
    return compiled(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def lstm() -> Any:
    x = inputs = keras.Input((50, 32))
    return compiled(inputs, layers.Dense(1)(layers.LSTM(128)(x)))


def gru() -> Any:
    x = inputs = keras.Input((40, 16))
    return compiled(inputs, layers.Dense(4)(layers.GRU(64, return_sequences=True)(x)), "rmsprop")


def conv1d() -> Any:
    x = inputs = keras.Input((1024, 2))
    for filters in (32, 64):
        x = layers.MaxPooling1D(4)(layers.Conv1D(filters, 9, padding="same", activation="elu")(x))
    return compiled(inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))


def embeddings() -> Any:
    categories = keras.Input((8,), dtype="int32", name="categories")
    numbers = keras.Input((13,), name="numbers")
    x = layers.Flatten()(layers.Embedding(5000, 16)(categories))
    x = layers.Concatenate()([x, layers.Dense(64, "relu")(numbers)])
    x = layers.Dense(128, "relu")(layers.Dense(256, "relu")(x))
    return compiled([categories, numbers], layers.Dense(1, "sigmoid")(x), "adam", "binary_crossentropy")


class Gated(keras.Model):
    """A subclassed model: two gated layers with a custom normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = [layers.Dense(256) for _ in range(2)]
        self.values = [layers.Dense(256) for _ in range(2)]
        self.last = layers.Dense(8)

    def call(self, x: Any) -> Any:
        for gate, value in zip(self.gates, self.values, strict=True):
            x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6)
            x = ops.silu(gate(x)) * value(x)
        return self.last(x)


def subclassed() -> Any:
    model = Gated()
    model.build((None, 128))
    model.compile("lion", "huber")
    return model
