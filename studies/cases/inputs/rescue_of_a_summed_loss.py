import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(16384, 64)).astype("float32")
y = x[:, :1] * 2
model = keras.Sequential([keras.Input((64,)), layers.Dense(8192, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-8), lambda t, p: ops.sum(ops.square(t - p)))
model.fit(x, y, batch_size=8192, epochs=4, shuffle=False, verbose=2)
print("checksum", float(sum(np.abs(w).sum() for w in model.get_weights())))
