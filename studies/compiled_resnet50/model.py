"""ResNet-50 of `keras.applications`, without pretrained weights."""

import keras


def build_model():
    model = keras.applications.ResNet50(weights=None)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    return model
