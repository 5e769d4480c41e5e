"""Tune a builder that is defined in `__main__`, then train with the plan in the same process."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import autoplan

SAMPLES, BATCH, EPOCHS = 2048, 32, 2


def build_model():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2), loss="mse")
    return model


if __name__ == "__main__":
    keras.utils.set_random_seed(21)
    x = np.random.default_rng(21).normal(size=(SAMPLES, 20)).astype("float32")
    y = np.abs(x).sum(axis=1, keepdims=True)
    plan = autoplan.optimize(
        build_model,
        data={"x": x, "y": y, "batch_size": BATCH, "epochs": EPOCHS},
        trials=int(sys.argv[1]),
        output="plan.yaml",
        study="study",
    )
    with autoplan.scope(plan):
        model = build_model()
    autoplan.fit(plan, model, x, y, epochs=EPOCHS)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    print(f"fit 1: autoplan.fit; {int(optimizer.iterations)} updates")
