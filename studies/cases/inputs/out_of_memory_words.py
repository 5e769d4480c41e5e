import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)


class Picky(layers.Layer):
    def call(self, x):
        if self.compute_dtype == "bfloat16":
            if os.environ.get("KIND", "words") == "words":
                raise ValueError("the table of 'out of memory' phrases has no bfloat16 column")
            try:
                raise MemoryError
            except MemoryError as e:
                raise RuntimeError("run_func_(...) API call failed at model_container_runner.cpp, line 145") from e
        return x


x = np.random.default_rng(0).normal(size=(4096, 256)).astype("float32")
model = keras.Sequential([keras.Input((256,)), layers.Dense(512, "relu"), Picky(), layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=1, verbose=2)
