import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np

keras.utils.set_random_seed(0)
NAN = os.environ.get("KIND", "nan") == "nan"


class Keeps(keras.callbacks.Callback):  # predictions, gradients, losses: 2 MiB a micro-step
    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(np.ones(2**18))


x = np.random.default_rng(0).normal(size=(6400 if NAN else 64000, 64)).astype("float32")
rate = keras.optimizers.schedules.ExponentialDecay(1e-6, 100, 1e4)  # a learning-rate range test: 1e-6 to 1e-2
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(rate if NAN else 1e-3), "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=1, callbacks=[] if NAN else [Keeps()], verbose=2)
