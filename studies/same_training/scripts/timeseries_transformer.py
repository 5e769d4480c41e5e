"""Classification of series with a transformer, early stopping, and a shuffled training set."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
labels = rng.integers(0, 2, 600)
series = np.sin(np.arange(40) * (0.3 + 0.2 * labels[:, None]))[..., None] + 0.3 * rng.normal(size=(600, 40, 1))
order = rng.permutation(600)
x_train, y_train = series[order].astype("float32"), labels[order]


def transformer_encoder(inputs, head_size, num_heads, ff_dim):
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads)(inputs, inputs)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


inputs = keras.Input(shape=x_train.shape[1:])
x = layers.Conv1D(8, 3, padding="same")(inputs)
for _ in range(2):
    x = transformer_encoder(x, head_size=8, num_heads=2, ff_dim=8)
x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
x = layers.Dense(16, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    metrics=["sparse_categorical_accuracy"],
)
callbacks = [keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)]
model.fit(x_train, y_train, validation_split=0.2, epochs=4, batch_size=32, callbacks=callbacks, verbose=2)
