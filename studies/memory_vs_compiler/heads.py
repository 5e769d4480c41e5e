"""Output layers and losses that several models share."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

SPARSE = "sparse_categorical_crossentropy"


def classes(inputs: Any, x: Any, count: int) -> Any:
    return keras.Model(inputs, layers.Dense(count, "softmax", dtype="float32")(x))


def logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
