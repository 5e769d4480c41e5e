import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)


class RangeTest(keras.callbacks.Callback):
    """Multiplies the learning rate after every batch, as a learning-rate range test does."""

    def on_train_batch_end(self, batch, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 1.1)


x = np.random.default_rng(0).normal(size=(6400, 64)).astype("float32")
model = keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-6), "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=1, verbose=2, callbacks=[RangeTest()])
