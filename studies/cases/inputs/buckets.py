import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)


def rows():
    rng = np.random.default_rng(0)
    for _i in range(4096):
        n = int(rng.integers(8, 33)) if rng.random() < 0.75 else int(rng.integers(65, 129))
        yield rng.integers(1, 500, n).astype("int32"), np.float32(n % 2)


ds = tf.data.Dataset.from_generator(
    rows, output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.float32))
)
ds = ds.bucket_by_sequence_length(
    lambda x, y: tf.shape(x)[0], [33, 65, 129], [64, 32, 16, 16], pad_to_bucket_boundary=True
)
model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        keras.layers.Embedding(500, 64),
        keras.layers.Dense(512, "relu"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(ds, epochs=1, verbose=2)
