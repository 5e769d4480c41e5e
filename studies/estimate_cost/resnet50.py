"""ResNet-50 (He et al., 2015) for 224x224 images of 1,000 classes, untrained."""

import keras


def build_model():
    model = keras.applications.ResNet50(weights=None)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
