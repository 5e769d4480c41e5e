import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


class Texts(keras.utils.PyDataset):  # 60 batches of 32 x 64 tokens; batch 37 is 32 x 1024
    def __len__(self):
        return 60

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        t = 1024 if i == 37 else 64
        return rng.integers(0, 500, (32, t)).astype("int32"), rng.integers(0, 2, (32, 1)).astype("float32")


class Attend(layers.Layer):
    def call(self, x):
        return ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x, (0, 2, 1))) / 8), x)


model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        layers.Embedding(500, 64),
        Attend(),
        Attend(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(Texts(), epochs=1, shuffle=False, verbose=2)
