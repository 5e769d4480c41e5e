"""Simple convnet for images of digits, with dropout and a validation split."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
labels = rng.integers(0, 10, 902)
x_train = rng.random((902, 28, 28, 1)).astype("float32") + labels[:, None, None, None].astype("float32") / 20
y_train = keras.utils.to_categorical(labels, 10)

model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=3, validation_split=0.1, verbose=2)
score = model.evaluate(x_train[:100], y_train[:100], verbose=0)
print("loss", score[0])
