import keras
import numpy as np
from keras import layers


class MaxSteps(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen >= 40:
            self.model.stop_training = True


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = rng.integers(0, 10, 1024)
m = keras.Sequential([keras.Input((64,)), layers.Dense(256, activation="relu"), layers.Dense(10)])
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=64, epochs=10, verbose=0, callbacks=[MaxSteps()])
print("iterations:", int(m.optimizer.iterations))
