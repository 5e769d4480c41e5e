import keras
import numpy as np
from keras import layers


class Counter(keras.callbacks.Callback):
    calls = 0

    def on_train_batch_end(self, batch, logs=None):
        self.calls += 1

    def on_train_end(self, logs=None):
        print("calls of on_train_batch_end:", self.calls, "updates:", int(self.model.optimizer.iterations))


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64 * 32, 64)).astype("float32")
y = rng.integers(0, 10, 64 * 32)
m = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(10)])
m.compile(
    keras.optimizers.Adam(1e-3, gradient_accumulation_steps=4),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    steps_per_execution=4,
)
m.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[Counter()])
