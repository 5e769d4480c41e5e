"""Two models as functions, without data: one image classifier, one with two inputs."""

import keras
from keras import layers


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


def build_two_inputs():
    words = keras.Input((12,), dtype="int32", name="words")
    numbers = keras.Input((6,), name="numbers")
    text = layers.GlobalAveragePooling1D()(layers.Embedding(100, 16)(words))
    output = layers.Dense(1)(layers.Concatenate()([text, numbers]))
    model = keras.Model({"words": words, "numbers": numbers}, output)
    model.compile(optimizer="adam", loss="mse")
    return model
