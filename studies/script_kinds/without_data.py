"""A builder without data. As a script it trains with the plan that its first argument names, on random images."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

BATCHES, EPOCHS = 20, 2


def build_model():
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(optimizer="sgd", loss="categorical_crossentropy")
    return model


if __name__ == "__main__":
    import autoplan

    plan = autoplan.load_plan(sys.argv[1])
    effective = plan.baseline.config.batch.effective
    rng = np.random.default_rng(22)
    x = rng.normal(size=(BATCHES * effective, 16, 16, 3)).astype("float32")
    y = np.eye(5, dtype="float32")[rng.integers(5, size=len(x))]
    with autoplan.scope(plan):
        model = build_model()
    autoplan.fit(plan, model, x, y, epochs=EPOCHS)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    print(f"fit 1: autoplan.fit; {int(optimizer.iterations)} updates")
