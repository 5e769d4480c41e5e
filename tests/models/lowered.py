"""Small models that compilers are asked about: a function each; plain Keras."""

import functools
import os
import signal
import time

import keras
import numpy as np

BATCH = 32


def convolutional():
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def attention():
    inputs = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(100, 32)(inputs)
    x = x + keras.layers.MultiHeadAttention(2, 16, dropout=0.1)(x, x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x)
    model = keras.Model(inputs, keras.layers.Dense(100)(x))
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fused_attention():
    """Attention that is one kernel on GPUs from Ampere on: in 16 bits and without dropout."""
    x = inputs = keras.Input((128, 32))
    x = x + keras.layers.MultiHeadAttention(2, 16, dtype="mixed_bfloat16")(x, x, use_causal_mask=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    return model


def dense():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def wide():
    """State alone is more than a v5e device has once the batch is large: 1.1 GB of weights, and Adam's moments."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16384, activation="gelu")])
    model.add(keras.layers.Dense(16384, activation="gelu"))
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")
    return model


class Eigenvalues(keras.layers.Layer):
    """An operation that no TPU has."""

    def call(self, x):
        values, _ = keras.ops.eig(keras.ops.stop_gradient(x[:, :, None] * x[:, None, :]))
        return x + keras.ops.real(values)


def eigenvalues():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), Eigenvalues(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Dying(keras.layers.Dense):
    """Ends the process, or never returns, while its micro-step is traced: as a compiler does that comes to grief.

    A stand-in: no compiler can be made to crash or to hang on purpose.
    """

    def call(self, inputs):
        if keras.src.backend.common.global_state.get_global_attribute("lowering"):
            os.kill(os.getpid(), signal.SIGSEGV) if self.name == "crash" else time.sleep(600)
        return super().call(inputs)


def dying(name):
    model = keras.Sequential([keras.Input((8,)), Dying(1, name=name)])
    model.compile("sgd", "mse")
    model.train_step = functools.partial(_lowering, model.train_step)
    return model


def _lowering(train_step, *arguments):
    keras.src.backend.common.global_state.set_global_attribute("lowering", True)
    return train_step(*arguments)


MODELS = {
    "convolutional": convolutional,
    "attention": attention,
    "dense": dense,
    "fused_attention": fused_attention,
    "wide": wide,
    "eigenvalues": eigenvalues,
    "crash": lambda: dying("crash"),
    "hang": lambda: dying("hang"),
}
DATA = {
    "convolutional": lambda: (np.zeros((BATCH, 16, 16, 3), "float32"), np.zeros((BATCH,), "int32")),
    "attention": lambda: (np.zeros((BATCH, 16), "int32"), np.zeros((BATCH, 16), "int32")),
    "fused_attention": lambda: (np.zeros((BATCH, 128, 32), "float32"), np.zeros((BATCH, 128, 1), "float32")),
}
ROWS = np.zeros((BATCH, 8), "float32"), np.zeros((BATCH, 1), "float32")


def data(name):
    x, y = DATA.get(name, lambda: ROWS)()
    return {"x": x, "y": y, "batch_size": BATCH}
