import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = rng.integers(0, 10, 1024)


class Pairs(keras.losses.Loss):
    def call(self, y, z):
        z = ops.normalize(z, axis=1)
        s = ops.matmul(z, ops.transpose(z)) / 0.1
        same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), "float32")
        return -ops.sum(ops.log_softmax(s, axis=1) * same, axis=1) / ops.sum(same, axis=1)


m = keras.Sequential([keras.Input((64,)), layers.Dense(256, activation="relu"), layers.Dense(32)])
m.compile("adam", Pairs())
m.fit(x, y, batch_size=64, epochs=4, verbose=2)
