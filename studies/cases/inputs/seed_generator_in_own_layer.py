import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


class Sampling(layers.Layer):  # the layer of Keras's own VAE example
    def __init__(self, **kw):
        super().__init__(**kw)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        return inputs + keras.random.normal(ops.shape(inputs), seed=self.seed_generator)


x = np.random.default_rng(0).random((4096, 256), dtype="float32")
model = keras.Sequential([keras.Input((256,)), layers.Dense(16), Sampling(), layers.Dense(256, "sigmoid")])
model.compile("adam", "mse", jit_compile=False)
model.fit(x, x, batch_size=16, epochs=1, verbose=2)
