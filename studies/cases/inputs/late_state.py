import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


class Annealed(layers.Layer):  # a penalty that begins after 90 calls
    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            self.add_loss(ops.clip(ops.cast(self.calls, "float32") / 100 - 0.9, 0, 1) * ops.mean(ops.square(x)))
        return x


rng = np.random.default_rng(0)
x = rng.normal(size=(6400, 64)).astype("float32")
y = x[:, :1]
model = keras.Sequential([keras.Input((64,)), layers.Dense(512, "relu"), Annealed(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
model.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=2)
print("calls", int(model.layers[1].calls), "checksum", float(sum(np.abs(w).sum() for w in model.get_weights())))
