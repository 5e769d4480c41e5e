"""A script with a mistake of its own, two calls deep, before it comes to fit."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras


def read_rows(path):
    with open(path) as file:
        return [line.split(",") for line in file]


def load(folder):
    return read_rows(os.path.join(folder, "missing-rows.csv"))


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
rows = load("no-such-folder")
model.fit(rows)
