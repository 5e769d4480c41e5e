"""Cross-validation: for each fold a fresh model, trained in two stages that go on from each other's epochs."""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


class Above(keras.metrics.Metric):
    """Share of predictions above a half, kept in two variables over an epoch."""

    def __init__(self, name="above", **kwargs):
        super().__init__(name=name, **kwargs)
        self.above = self.add_weight(shape=(), initializer="zeros", name="above")
        self.seen = self.add_weight(shape=(), initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        high = keras.ops.cast(y_pred > 0.5, "float32")
        self.above.assign_add(keras.ops.sum(high))
        self.seen.assign_add(keras.ops.sum(keras.ops.ones_like(high)))

    def result(self):
        return self.above / keras.ops.maximum(self.seen, 1.0)


def build():
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(24, "tanh"), keras.layers.Dense(1, "sigmoid")])
    model.compile("rmsprop", "binary_crossentropy", None, [Above(), "accuracy"])
    return model


rng = np.random.default_rng(23)
x = rng.normal(size=(300, 10)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
updates, scores = [], []
for fold in range(3):
    keras.backend.clear_session()
    keras.utils.set_random_seed(fold)
    model = build()
    held = np.arange(300) % 3 == fold
    score = model.evaluate(x[held], y[held], verbose=0)
    model.fit(x[~held], y[~held], 40, 1, 0)
    model.fit(x[~held], y[~held], batch_size=40, initial_epoch=1, epochs=3, verbose=0, validation_split=0.2)
    updates.append(int(model.optimizer.iterations))
    scores.append(len(score))
print(json.dumps({"updates": updates, "scores": scores}))
