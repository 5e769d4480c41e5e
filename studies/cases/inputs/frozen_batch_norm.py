import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1001, 64)).astype("float32")
y = rng.integers(0, 10, 1001)
base = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.BatchNormalization()])
base.trainable = False
i = keras.Input((64,))
m = keras.Model(i, layers.Dense(10)(base(i, training=False)))
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
m.fit(x, y, batch_size=64, epochs=2, verbose=2)
