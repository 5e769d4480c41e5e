import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(8192, 256)).astype("float32")
y = (1e8 * x[:, :1]).astype("float32")  # targets in their physical unit, never scaled
model = keras.Sequential([keras.Input((256,)), layers.Dense(512, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
model.fit(x, y, batch_size=64, epochs=1, verbose=2)
print("updates applied", int(model.optimizer.iterations))
