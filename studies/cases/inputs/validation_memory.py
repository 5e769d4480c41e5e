import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.integers(0, 255, (1024, 64, 64, 3), dtype="uint8")
y = rng.integers(0, 10, 1024)
xv = rng.integers(0, 255, (4096, 64, 64, 3), dtype="uint8")
yv = rng.integers(0, 10, 4096)
model = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        layers.Rescaling(1 / 255),
        layers.Conv2D(16, 3, padding="same"),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=16, epochs=2, validation_data=(xv, yv), validation_batch_size=4096, verbose=2)
