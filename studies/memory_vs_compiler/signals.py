"""Models of signals, tables and vectors, and recurrent models."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from studies.memory_vs_compiler.heads import SPARSE, classes, logits


def lstm() -> Any:
    tokens = keras.Input((200,), dtype="int32")
    x = layers.Embedding(20000, 256)(tokens)
    for _ in range(2):
        x = layers.LSTM(512, return_sequences=True)(x)
    return keras.Model(tokens, layers.Dense(20000)(layers.Dropout(0.3)(x))), logits()


def gru() -> Any:
    x = inputs = keras.Input((400, 80))
    for _ in range(2):
        x = layers.GRU(384, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(3)(x)), "mse"


def bidirectional() -> Any:
    tokens = keras.Input((300,), dtype="int32")
    x = layers.Bidirectional(layers.LSTM(128, return_sequences=True))(layers.Embedding(30000, 128)(tokens))
    x = layers.Bidirectional(layers.GRU(128))(x)
    return keras.Model(tokens, layers.Dense(1, "sigmoid", dtype="float32")(x)), "binary_crossentropy"


def dlrm() -> Any:
    dense = keras.Input((13,), name="numbers")
    sparse = keras.Input((16,), dtype="int32", name="categories")
    x = layers.Dense(64, "relu")(layers.Dense(256, "relu")(layers.Dense(512, "relu")(dense)))
    rows = layers.Embedding(200_000, 64)(sparse)
    vectors = layers.Concatenate(axis=1)([layers.Reshape((1, 64))(x), rows])
    pairs = layers.Flatten()(layers.Dot(axes=2)([vectors, vectors]))
    x = layers.Concatenate()([x, pairs])
    for width in (1024, 512, 256):
        x = layers.Dense(width, "relu")(x)
    return keras.Model([dense, sparse], layers.Dense(1, "sigmoid", dtype="float32")(x)), "binary_crossentropy"


class GatedResidual(layers.Layer):
    """A layer that computes x + W(swish(Ux) * Vx), with root-mean-square normalization."""

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.norm = self.add_weight(shape=(width,), initializer="ones", name="norm")
        self.gate, self.value = (
            self.add_weight(shape=(width, 4 * width), initializer="glorot_uniform", name=name)
            for name in ("gate", "value")
        )
        self.out = self.add_weight(shape=(4 * width, width), initializer="glorot_uniform", name="out")

    def call(self, x: Any) -> Any:
        y = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6) * self.norm
        return x + ops.matmul(ops.silu(ops.matmul(y, self.gate)) * ops.matmul(y, self.value), self.out)


class CustomModel(keras.Model):
    """A subclassed model with a stack of custom layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(768)
        self.blocks = [GatedResidual() for _ in range(4)]
        self.last = layers.Dense(32)

    def call(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def resmlp_custom() -> Any:
    model = CustomModel()
    model.build((None, 256))
    return model, "huber"


def conv1d() -> Any:
    x = inputs = keras.Input((8000, 2))
    for filters in (64, 96, 128, 192):
        x = layers.Conv1D(filters, 9, padding="same")(x)
        x = layers.MaxPooling1D(4)(layers.ELU()(layers.BatchNormalization()(x)))
    return classes(inputs, layers.GlobalMaxPooling1D()(x), 35), SPARSE


def wavenet() -> Any:
    inputs = keras.Input((4096, 1))
    x = layers.Conv1D(64, 2, padding="causal")(inputs)
    skips = []
    for rate in (1, 2, 4, 8, 16):
        gate = layers.Conv1D(64, 2, padding="causal", dilation_rate=rate, activation="sigmoid")(x)
        y = layers.Multiply()([layers.Conv1D(64, 2, padding="causal", dilation_rate=rate, activation="tanh")(x), gate])
        skips.append(layers.Conv1D(128, 1)(y))
        x = layers.Add()([x, layers.Conv1D(64, 1)(y)])
    x = layers.Conv1D(128, 1, activation="relu")(layers.ReLU()(layers.Add()(skips)))
    return keras.Model(inputs, layers.Conv1D(256, 1)(x)), logits()


def mlp() -> Any:
    x = inputs = keras.Input((512,))
    for _ in range(5):
        x = layers.Dropout(0.2)(layers.BatchNormalization()(layers.Dense(2048, "relu")(x)))
    return keras.Model(inputs, layers.Dense(100)(x)), logits()
