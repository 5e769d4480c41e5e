"""Classification of point clouds: shared convolutions, a learned transform with a regularizer, global max pooling."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops

POINTS = 48


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    def __init__(self, num_features, l2reg=0.001):
        self.num_features = num_features
        self.l2reg = l2reg

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.num_features, self.num_features))
        xxt = ops.tensordot(x, x, axes=(2, 2))
        xxt = ops.reshape(xxt, (-1, self.num_features, self.num_features))
        return ops.sum(self.l2reg * ops.square(xxt - ops.eye(self.num_features)))

    def get_config(self):
        return {"num_features": self.num_features, "l2reg": self.l2reg}


def tnet(inputs, num_features):
    x = layers.Conv1D(16, 1, activation="relu")(inputs)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(16, activation="relu")(x)
    x = layers.Dense(
        num_features * num_features,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(num_features).flatten()),
        activity_regularizer=OrthogonalRegularizer(num_features),
    )(x)
    return layers.Dot(axes=(2, 1))([inputs, layers.Reshape((num_features, num_features))(x)])


keras.utils.set_random_seed(11)
rng = np.random.default_rng(11)
labels = rng.integers(0, 4, 469)
points = (rng.normal(size=(469, POINTS, 3)) * (1 + labels[:, None, None] * [1, 0, 0.5])).astype("float32")
inputs = keras.Input(shape=(POINTS, 3))
x = tnet(inputs, 3)
x = layers.Conv1D(16, 1, activation="relu")(x)
x = layers.Conv1D(32, 1, activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=0.001),
    metrics=["sparse_categorical_accuracy"],
)
model.fit(points, labels, batch_size=32, epochs=2, verbose=2)
