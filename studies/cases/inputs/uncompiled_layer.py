import sys
import time

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 36, 36, 3)).astype("float32")
y = rng.integers(0, 10, 512)
m = keras.Sequential(
    [
        keras.Input((36, 36, 3)),
        layers.RandomCrop(32, 32),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
    ]
)
if "force" in sys.argv:
    for l in m.layers:
        l.supports_jit = True
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=64, epochs=1, verbose=0)
t = time.time()
m.fit(x, y, batch_size=64, epochs=3, verbose=0)
print("jit_compile:", m.jit_compile, "seconds a step:", (time.time() - t) / 24)
