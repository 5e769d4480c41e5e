import keras
from keras import layers


def build_model():
    model = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
