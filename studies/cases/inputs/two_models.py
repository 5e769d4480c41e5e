import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
y = rng.integers(0, 10, 1024)


def make(units):
    m = keras.Sequential([keras.Input((64,)), layers.Dense(units, activation="relu"), layers.Dense(10)])
    m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return m


a = make(256)
a.fit(x, y, batch_size=64, epochs=2, verbose=0)
b = make(32)
b.fit(x, y, batch_size=64, epochs=2, verbose=0)
print(
    "policy of a:",
    a.layers[0].dtype_policy.name,
    "of b:",
    b.layers[0].dtype_policy.name,
    "output dtype of b:",
    b(x[:2]).dtype,
)
