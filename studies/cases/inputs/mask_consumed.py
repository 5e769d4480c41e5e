import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.integers(0, 50, (1001, 12))
y = rng.integers(0, 10, 1001)
i = keras.Input((12,), dtype="int32")
o = layers.Dense(10)(layers.GRU(32)(layers.Embedding(50, 16, mask_zero=True)(i)))
print("mask of the output:", keras.src.backend.get_keras_mask(o))
m = keras.Model(i, o)
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=64, epochs=2, verbose=2)
