import keras
import numpy as np
from keras import layers


class Mine(keras.optimizers.SGD):
    def __init__(self, scale, **kw):
        super().__init__(learning_rate=0.1 * scale, **kw)


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = rng.integers(0, 10, 1024)
m = keras.Sequential([keras.Input((64,)), layers.Dense(256, activation="relu"), layers.Dense(10)])
opt = Mine(0.5)
opt.build(m.trainable_variables)
m.compile(opt, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
h = m.fit(x, y, batch_size=64, epochs=3, verbose=0)
print("loss", h.history["loss"][-1], "iterations:", int(m.optimizer.iterations))
