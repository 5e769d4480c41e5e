import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(1)])

    def call(self, x):
        return self.net(x)

    def compile(self, g_optimizer):
        super().compile()
        self.g_optimizer = g_optimizer

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x, training=True)[:, 0] - y) ** 2)
        w = self.net.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(loss, w), w, strict=False))
        return {"g_loss": loss}


rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = x[:, 0]
m = Net()
m.compile(keras.optimizers.Adam(1e-3))
m.fit(x, y, batch_size=64, epochs=2, verbose=2)
print("updates of the weights:", int(m.g_optimizer.iterations))
