"""A model without a loss: compile was forgotten."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


if __name__ == "__main__":
    build_model().fit(np.ones((8, 4)), np.ones((8, 1)))
