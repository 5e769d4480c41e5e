import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np

keras.utils.set_random_seed(0)
rng, N, IGNORE = np.random.default_rng(0), 40 * 64 + 18, os.environ.get("KIND") == "ignore_class"
x = rng.normal(size=(N, 32)).astype("float32")
y = (x @ rng.normal(size=(32, 1))).astype("float32")
y[-18:] += 50  # make the last update count
if IGNORE:
    y = rng.integers(0, 10, N)
    y[-9:] = -1  # half of the last update is not labelled
loss = (
    keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    if IGNORE
    else keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(10 if IGNORE else 1)])
model.compile(keras.optimizers.SGD(0.5 if IGNORE else 0.01), loss=loss)
model.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=2)
print("checksum", float(sum(np.abs(w).sum() for w in model.get_weights())))
