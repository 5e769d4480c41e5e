import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


def info_nce(_, pairs):  # negatives are the other rows of the micro-batch
    a, b = pairs[:, 0], pairs[:, 1]
    logits = ops.matmul(a, ops.transpose(b)) / 0.1
    return ops.sparse_categorical_crossentropy(ops.arange(ops.shape(a)[0]), logits, from_logits=True)


rng = np.random.default_rng(0)
left = rng.normal(size=(8192, 64)).astype("float32")
right = left + 0.1 * rng.normal(size=left.shape).astype("float32")
model = keras.Sequential(
    [keras.Input((2, 64)), layers.Dense(256, "relu"), layers.Dense(32), layers.UnitNormalization()]
)
model.compile("adam", info_nce)
model.fit(
    np.stack([left, right], 1), np.zeros((8192, 1), "float32"), batch_size=4096, epochs=4, shuffle=False, verbose=2
)
