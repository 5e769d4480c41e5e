import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)


class Strict(layers.Layer):
    def call(self, x):
        if keras.backend.standardize_dtype(x.dtype) != "float32":
            raise TypeError("float32 only")
        return x


rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = rng.integers(0, 10, 1024)
m = keras.Sequential([keras.Input((64,)), layers.Dense(64), Strict(), layers.Dense(10)])
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=64, epochs=2, verbose=2)
