"""Small real models, compiled, for tests that trace, compile or train them."""

import keras
from keras import layers


def dense(width_in=24, width_out=16, *, optimizer="sgd", bias=False):
    """One dense layer on B samples: a product of (B, width_in) and (width_in, width_out)."""
    model = keras.Sequential([keras.Input((width_in,)), layers.Dense(width_out, use_bias=bias)])
    model.compile(optimizer=optimizer, loss="mse")
    return model


def mlp(*, optimizer="adam", widths=(64, 64), loss="mse", **compile_arguments):
    """A regression MLP of 32 inputs."""
    inputs = keras.Input((32,))
    x = inputs
    for width in widths:
        x = layers.Dense(width, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile(optimizer=optimizer, loss=loss, **compile_arguments)
    return model


def convolution(*, filters=8, groups=1, strides=1, kernel=3, side=16, channels=4):
    """One convolution without bias, "same" padding."""
    inputs = keras.Input((side, side, channels))
    x = layers.Conv2D(filters, kernel, strides=strides, groups=groups, padding="same", use_bias=False)(inputs)
    model = keras.Model(inputs, x)
    model.compile(optimizer="sgd", loss="mse")
    return model


def image_classifier():
    """Convolutions, BatchNorm, pooling, dropout, softmax: 16x16 images, 10 classes."""
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def attention(*, width=32, heads=4, length=12):
    """One multi-head self-attention without bias."""
    inputs = keras.Input((length, width))
    x = layers.MultiHeadAttention(heads, width // heads, use_bias=False)(inputs, inputs)
    model = keras.Model(inputs, x)
    model.compile(optimizer="sgd", loss="mse")
    return model


def decoder(*, width=32, heads=4, length=16, vocabulary=64, blocks=2, dropout=0.1):
    """A small language model with causal attention."""
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    model = keras.Model(tokens, layers.Dense(vocabulary)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adamw", loss=loss)
    return model


def recurrent(*, length=20, width=16):
    """A GRU over sequences: a loop in the training step."""
    inputs = keras.Input((length, 8))
    model = keras.Model(inputs, layers.Dense(1)(layers.GRU(width)(inputs)))
    model.compile(optimizer="rmsprop", loss="mse")
    return model


class Residual(keras.Layer):
    """A custom layer of the user's own."""

    def __init__(self, width):
        super().__init__()
        self.inner = layers.Dense(width, activation="tanh")

    def call(self, x):
        return x + self.inner(x)


class Subclassed(keras.Model):
    """A model that is built when it is first called."""

    def __init__(self):
        super().__init__()
        self.residual = Residual(12)
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(self.residual(x))


def subclassed():
    """A compiled subclassed model that no one has called yet."""
    model = Subclassed()
    model.compile(optimizer="adam", loss="mse")
    return model


def two_inputs():
    """Words and numbers, two outputs with a loss each."""
    words = keras.Input((6,), dtype="int32", name="words")
    numbers = keras.Input((3,), name="numbers")
    x = layers.Concatenate()([layers.GlobalAveragePooling1D()(layers.Embedding(50, 8)(words)), numbers])
    outputs = {"kind": layers.Dense(7, activation="softmax")(x), "size": layers.Dense(1)(x)}
    model = keras.Model({"words": words, "numbers": numbers}, outputs)
    model.compile(optimizer="adam", loss={"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model
