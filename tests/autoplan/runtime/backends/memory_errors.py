"""Exceptions that speak of memory and are not about it, and others that hide that memory ran out."""

import keras
import numpy as np


def caught(raising):
    try:
        raising()
    except Exception as error:  # noqa: BLE001 -- each has its own
        return error


def words():
    raise ValueError("the table of 'out of memory' phrases has no bfloat16 column")


def words_of_a_runtime_error():
    raise RuntimeError("RESOURCE_EXHAUSTED: CUDA out of memory. Cannot allocate memory, OOM when allocating")


def hidden():
    try:
        raise MemoryError
    except MemoryError as error:
        raise RuntimeError("API call failed at runner.cpp, line 145") from error


def hidden_from_none():
    try:
        keras.ops.convert_to_numpy(keras.ops.ones((2**24, 2**24)))
    except Exception:  # noqa: BLE001 -- each backend raises its own
        raise ValueError("the batch cannot be made") from None


def grouped():
    try:
        hidden()
    except RuntimeError as error:
        raise ExceptionGroup("two workers failed", [ValueError("no"), error]) from None


class Fails(keras.layers.Layer):
    def __init__(self, raising):
        super().__init__()
        self.raising = raising

    def call(self, x):
        self.raising()
        return x


def words_in_a_layer():
    Fails(words)(np.ones((2, 3), "float32"))


def hidden_in_a_layer():
    Fails(hidden)(np.ones((2, 3), "float32"))


GROUPS = {
    "words": (words, words_of_a_runtime_error, words_in_a_layer),
    "hidden": (hidden, hidden_in_a_layer, hidden_from_none, grouped),
}
