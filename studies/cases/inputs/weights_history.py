import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)


class Trajectory(keras.callbacks.Callback):
    """Keeps the path of the last layer's weights for a plot."""

    def __init__(self):
        super().__init__()
        self.path = []

    def on_train_batch_end(self, batch, logs=None):
        self.path.append(self.model.layers[-1].get_weights()[0][:, 0].copy())
        np.save("trajectory.npy", np.stack(self.path))


x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), layers.Dense(32, "relu"), layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=2, verbose=0, callbacks=[Trajectory()])
print("path:", len(np.load("trajectory.npy")))
