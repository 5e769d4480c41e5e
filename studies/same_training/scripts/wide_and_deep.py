"""Wide and deep model of tables: inputs by name from tf.data, BatchNormalization and dropout in the deep part."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
features = {
    "age": rng.normal(size=(800, 1)).astype("float32"),
    "hours": rng.normal(size=(800, 1)).astype("float32"),
    "job": rng.integers(0, 12, (800,)),
    "region": rng.integers(0, 5, (800,)),
}
labels = ((features["age"][:, 0] > 0) ^ (features["job"] > 6)).astype("int32")
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(800, seed=3).batch(64)

inputs = {
    "age": keras.Input((1,), name="age"),
    "hours": keras.Input((1,), name="hours"),
    "job": keras.Input((), name="job", dtype="int64"),
    "region": keras.Input((), name="region", dtype="int64"),
}
wide = layers.concatenate(
    [
        layers.CategoryEncoding(12, output_mode="one_hot")(inputs["job"]),
        layers.CategoryEncoding(5, output_mode="one_hot")(inputs["region"]),
    ]
)
wide = layers.BatchNormalization()(wide)
deep = layers.concatenate(
    [
        layers.Embedding(12, 4)(inputs["job"]),
        layers.Embedding(5, 3)(inputs["region"]),
        inputs["age"],
        inputs["hours"],
    ]
)
for units in (16, 16):
    deep = layers.Dense(units)(deep)
    deep = layers.BatchNormalization()(deep)
    deep = layers.ReLU()(deep)
    deep = layers.Dropout(0.1)(deep)
merged = layers.concatenate([wide, deep])
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(merged))
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.001),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
model.fit(dataset, epochs=3, verbose=2)
