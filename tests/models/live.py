"""Small compiled models with classes and functions of their own, as a notebook holds them, and data for them."""

import keras
import numpy as np
from keras import layers


class Scale(keras.layers.Layer):
    """As Keras's guide writes layers: its __init__ takes nothing of Keras's."""

    def __init__(self, power=1):
        super().__init__()
        self.power = power

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor**self.power


class Block(keras.layers.Layer):
    """Makes its sublayers in __init__, which take the global policy."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.inner = layers.Dense(width, activation="relu")
        self.outer = layers.Dense(width)

    def call(self, x):
        return x + self.outer(self.inner(x))

    def get_config(self):
        return super().get_config() | {"width": self.width}


def doubled(x):
    return 2 * x


def mean_error(y, y_pred):
    return keras.ops.mean(keras.ops.abs(y - y_pred), axis=-1)


def functional():
    """Two inputs, a shared layer, a nested model, an operation that is no layer, BatchNorm, a softmax in float32."""
    left, right = keras.Input((8,), name="left"), keras.Input((8,), name="right")
    shared = layers.Dense(8, activation=doubled, name="shared")
    inner_input = keras.Input((8,))
    inner = keras.Model(inner_input, layers.Dense(8, name="within")(inner_input), name="inner")
    x = keras.ops.add(shared(left), shared(right)) * 0.5
    x = layers.BatchNormalization(name="norm")(Scale(2)(inner(x)))
    x = layers.Dropout(0.25, name="drop")(Block(8, name="block")(x))
    logits = layers.Dense(4, name="logits")(x)
    model = keras.Model(
        {"left": left, "right": right}, layers.Activation("softmax", dtype="float32", name="shares")(logits)
    )
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy", metrics=["accuracy", mean_error])
    return model


def sequential():
    model = keras.Sequential(
        [keras.Input((8,)), Scale(), layers.Dense(16, activation="relu"), layers.Dense(4, name="out")]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.MeanSquaredError())
    return model


class Subclassed(keras.Model):
    """Cannot be built again: nobody knows what its __init__ was given."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks
        self.drop = layers.Dropout(0.25)
        self.head = layers.Dense(4)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x, training=training))


def subclassed():
    model = Subclassed([Block(8), Scale()])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def samples(count=96):
    """(x, y) for all of them but `functional`."""
    x = np.random.default_rng(0).standard_normal((count, 8)).astype("float32")
    return x, x[:, :4]


def pairs(count=96):
    """(x, y) for `functional`."""
    x, y = samples(count)
    return {"left": x, "right": x[::-1].copy()}, np.exp(y) / np.exp(y).sum(1, keepdims=True)


KINDS = {"functional": (functional, pairs), "sequential": (sequential, samples), "subclassed": (subclassed, samples)}


def trained(kind):
    """A model of that kind after an epoch, and its data."""
    build, data = KINDS[kind]
    keras.utils.set_random_seed(0)
    model = build()
    x, y = data()
    model.fit(x, y, batch_size=32, epochs=1, verbose=0)
    return model, x, y
