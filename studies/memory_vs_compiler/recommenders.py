"""Small recommenders: most of their memory is one or two tables of embeddings."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


def wide_and_deep() -> Any:
    fields = keras.Input((20,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(50_000, 16)(fields))
    for width in (256, 128):
        x = layers.Dense(width, "relu")(x)
    wide = layers.Flatten()(layers.Embedding(50_000, 1)(fields))
    return keras.Model(fields, layers.Dense(1, "sigmoid")(layers.Concatenate()([x, wide]))), "binary_crossentropy"


class Pairs(layers.Layer):  # type: ignore[misc]
    """The sum of the products of all pairs of rows (Rendle 2010, equation 5)."""

    def call(self, rows: Any) -> Any:
        return (ops.square(ops.sum(rows, 1)) - ops.sum(ops.square(rows), 1)) / 2


def factorization_machine() -> Any:
    fields = keras.Input((30,), dtype="int32")
    pairs = Pairs()(layers.Embedding(40_000, 24)(fields))
    x = layers.Concatenate()([pairs, layers.Flatten()(layers.Embedding(40_000, 1)(fields))])
    return keras.Model(fields, layers.Dense(1, "sigmoid")(x)), "binary_crossentropy"


def matrix_factorization() -> Any:
    user, item = (keras.Input((1,), dtype="int32", name=name) for name in ("user", "item"))
    factors = [layers.Embedding(count, 48)(one) for one, count in ((user, 60_000), (item, 30_000))]
    biases = [layers.Embedding(count, 1)(one) for one, count in ((user, 60_000), (item, 30_000))]
    score = layers.Add()([layers.Dot(2)(factors), *biases])
    return keras.Model([user, item], layers.Flatten()(score)), "mse"
