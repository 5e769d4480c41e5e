import time

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)


class Slow(keras.utils.PyDataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        time.sleep(0.02)
        r = np.random.default_rng(i)
        return r.normal(size=(32, 64)).astype("float32"), r.integers(0, 10, 32)


m = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=4)
m.fit(Slow(), epochs=2, verbose=2)
