import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
inputs = keras.Input(batch_shape=(32, 20, 8))
pairs = ops.reshape(inputs, (16, 2, 160))
hidden = layers.Dense(64, "relu")(ops.reshape(pairs, (32, 160)))
model = keras.Model(inputs, layers.Dense(1)(hidden))
x = np.random.default_rng(0).normal(size=(1024, 20, 8)).astype("float32")
model.compile("adam", "mse")
model.fit(x, x[:, 0, :1], batch_size=32, epochs=2, verbose=2)
