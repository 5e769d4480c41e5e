import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(600, 32)).astype("float32")
y = rng.integers(0, 2, 600)
m = keras.Sequential([keras.Input((32,)), layers.Dense(32, activation="relu"), layers.Dense(2)])
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=1, epochs=3, verbose=0)
