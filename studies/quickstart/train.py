"""Learn a smooth function of 64 inputs with a small network: a training script as it might be found anywhere.

The micro-batches of 32 with 8 of them an update were once chosen for a machine with little memory, and stayed.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers


def make_data(samples: int, features: int = 64, seed: int = 7):
    """-> x (samples, features), y (samples, 1): a sum of sines of random projections, with a little noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)).astype("float32")
    projections = rng.normal(size=(features, 8)) / np.sqrt(features)
    y = np.sin(x @ projections).sum(axis=1, keepdims=True) + 0.05 * rng.normal(size=(samples, 1))
    return x, y.astype("float32")


def build_network(features: int = 64):
    return keras.Sequential(
        [
            keras.Input((features,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(1),
        ]
    )


def main():
    keras.utils.set_random_seed(1)
    x, y = make_data(34_816)
    x_train, y_train, x_test, y_test = x[:32_768], y[:32_768], x[32_768:], y[32_768:]
    model = build_network()
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=2e-3, weight_decay=1e-4, gradient_accumulation_steps=8),
        loss="mse",
        metrics=["mae"],
    )
    model.fit(x_train, y_train, batch_size=32, epochs=5, validation_data=(x_test, y_test), verbose=2)


if __name__ == "__main__":
    main()
