"""ResNet-50 of `keras.applications`, without pretrained weights, on random images of 224 x 224."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

SAMPLES, CLASSES, BATCH = 1024, 1000, 512

images = np.zeros((SAMPLES, 224, 224, 3), np.uint8)
labels = np.arange(SAMPLES) % CLASSES

model = keras.applications.ResNet50(weights=None, classes=CLASSES)
model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="sparse_categorical_crossentropy")
model.fit(images, labels, batch_size=BATCH)
