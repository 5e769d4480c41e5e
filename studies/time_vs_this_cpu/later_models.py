"""Models that were added after the rules. Each was estimated before it was measured; large errors were fixed then."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from studies.time_vs_this_cpu.models import compiled

CLASSES = "categorical_crossentropy"


def inverted() -> Any:
    """Inverted residuals of depthwise convolutions."""

    def normed(x: Any) -> Any:
        return layers.Activation("hard_silu")(layers.BatchNormalization()(x))

    inputs = keras.Input((48, 48, 3))
    x = normed(layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(inputs))
    for features, strides in ((16, 1), (24, 2), (24, 1)):
        y = normed(layers.Conv2D(4 * features, 1, use_bias=False)(x))
        y = normed(layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(y))
        y = layers.BatchNormalization()(layers.Conv2D(features, 1, use_bias=False)(y))
        x = layers.Add()([x, y]) if x.shape == y.shape else y
    return compiled(inputs, layers.Dense(20, "softmax")(layers.GlobalAveragePooling2D()(x)), "rmsprop", CLASSES)


def textcnn() -> Any:
    """Convolutions of several lengths over word embeddings."""
    words = keras.Input((200,), dtype="int32")
    x = layers.Embedding(8000, 64)(words)
    found = [layers.GlobalMaxPooling1D()(layers.Conv1D(64, size, activation="relu")(x)) for size in (3, 4, 5)]
    x = layers.Dropout(0.3)(layers.Concatenate()(found))
    return compiled(words, layers.Dense(1, "sigmoid")(x), "adam", "binary_crossentropy")


def autoencoder() -> Any:
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(4096, "relu")(layers.Dense(64)(layers.Flatten()(x)))
    x = layers.Reshape((8, 8, 64))(x)
    for filters in (64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return compiled(inputs, layers.Conv2D(3, 3, padding="same")(x))


def bilstm() -> Any:
    series = keras.Input((50, 32))
    x = layers.Bidirectional(layers.LSTM(48))(series)
    return compiled(series, layers.Dense(3, "softmax")(x), "adam", CLASSES)


def crossnet() -> Any:
    """Products of features, in parallel with a dense network."""
    x = y = inputs = keras.Input((256,))
    for _ in range(3):
        x = layers.Add()([layers.Multiply()([inputs, layers.Dense(256)(x)]), x])
    for width in (512, 256):
        y = layers.Activation("relu")(layers.BatchNormalization()(layers.Dense(width)(y)))
        y = layers.Dropout(0.2)(y)
    return compiled(inputs, layers.Dense(1)(layers.Concatenate()([x, y])), "adamw")


def volumes() -> Any:
    """Convolutions over three dimensions."""
    x = inputs = keras.Input((16, 24, 24, 1))
    for filters in (8, 16):
        x = layers.MaxPooling3D()(layers.Conv3D(filters, 3, padding="same", activation="relu")(x))
    return compiled(inputs, layers.Dense(4, "softmax")(layers.GlobalAveragePooling3D()(x)), "sgd", CLASSES)


def dense_block() -> Any:
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(24, 3, padding="same")(inputs)
    for _ in range(4):
        y = layers.Activation("relu")(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, layers.Conv2D(12, 3, padding="same")(y)])
    x = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x))
    return compiled(inputs, x, keras.optimizers.SGD(0.1, momentum=0.9), CLASSES)


def seq2seq() -> Any:
    """An encoder, and a decoder that attends to it."""

    def block(x: Any, memory: Any = None, causal: bool = False) -> Any:
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 24)(y, y, use_causal_mask=causal)])
        if memory is not None:
            x = layers.Add()([x, layers.MultiHeadAttention(4, 24)(layers.LayerNormalization()(x), memory)])
        return layers.Add()([x, layers.Dense(96)(layers.Dense(384, "gelu")(layers.LayerNormalization()(x)))])

    source, target = (keras.Input((40,), dtype="int32", name=name) for name in ("source", "target"))
    memory = block(layers.Embedding(3000, 96)(source))
    x = layers.Dense(3000)(block(layers.Embedding(3000, 96)(target), memory, causal=True))
    return compiled([source, target], x, "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def wide_silu() -> Any:
    x = inputs = keras.Input((784,))
    for width in (2048, 1024, 512):
        x = layers.Dense(width, "silu")(x)
    return compiled(inputs, layers.Dense(10, "softmax")(x), "adam", CLASSES)


def convnext() -> Any:
    """Depthwise convolutions of 7 x 7."""
    inputs = keras.Input((64, 64, 3))
    x = layers.LayerNormalization()(layers.Conv2D(48, 4, strides=4)(inputs))
    for _ in range(3):
        y = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
        x = layers.Add()([x, layers.Dense(48)(layers.Dense(192, "gelu")(y))])
    return compiled(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)), "adamw", CLASSES)


def gated_conv() -> Any:
    """Group normalization, and channels scaled by their means."""
    inputs = keras.Input((40, 40, 3))
    x = layers.Conv2D(24, 3, padding="same", activation="relu")(inputs)
    for filters in (32, 64):
        y = layers.GroupNormalization(8)(layers.Conv2D(filters, 3, strides=2, padding="same")(x))
        y = layers.Activation("silu")(y)
        gate = layers.Dense(filters // 4, "relu")(layers.GlobalAveragePooling2D()(y))
        gate = layers.Dense(filters, "sigmoid")(gate)
        x = layers.Multiply()([y, layers.Reshape((1, 1, filters))(gate)])
    x = layers.Flatten()(layers.AveragePooling2D(2)(x))
    return compiled(inputs, layers.Dense(6, "softmax")(x), "adam", CLASSES)


def tcn() -> Any:
    """Dilated convolutions of a series."""
    series = keras.Input((300, 12))
    x = layers.Conv1D(32, 1)(series)
    for dilation in (1, 2, 4, 8):
        y = layers.Conv1D(32, 3, dilation_rate=dilation, padding="causal", activation="relu")(x)
        x = layers.Add()([x, layers.Dropout(0.1)(y)])
    return compiled(series, layers.Dense(1)(layers.GlobalMaxPooling1D()(x)))


def bert() -> Any:
    """An encoder with post-normalization and dropout after each layer."""
    words = keras.Input((64,), dtype="int32")
    x = layers.LayerNormalization()(layers.Embedding(6000, 128)(words))
    for _ in range(2):
        y = layers.MultiHeadAttention(2, 64, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(y)]))
        y = layers.Dense(128)(layers.Dense(512, "gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(y)]))
    x = layers.Dense(4, "softmax")(layers.GlobalMaxPooling1D()(x))
    return compiled(words, x, "adamw", "sparse_categorical_crossentropy")


def convlstm() -> Any:
    """A convolutional LSTM: convolutions in a loop."""
    frames = keras.Input((6, 20, 20, 2))
    x = layers.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(frames)
    x = layers.ConvLSTM2D(8, 3, padding="same")(x)
    return compiled(frames, layers.Conv2D(1, 1)(x))


def dense_autoencoder() -> Any:
    x = inputs = keras.Input((1500,))
    for width in (300, 60, 300):
        x = layers.Dense(width, "tanh")(x)
    return compiled(inputs, layers.Dense(1500, "sigmoid")(x), "rmsprop", "binary_crossentropy")


def gru_words() -> Any:
    words = keras.Input((30,), dtype="int32")
    x = layers.GRU(96, return_sequences=True)(layers.Embedding(4000, 48)(words))
    x = layers.Dense(4000, "softmax")(layers.GRU(96)(x))
    return compiled(words, x, "adam", "sparse_categorical_crossentropy")


def vgg() -> Any:
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(10, "softmax")(layers.Dense(256, "relu")(layers.Flatten()(x)))
    return compiled(inputs, x, keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), CLASSES)


def recommender() -> Any:
    """Large embedding tables of which few rows are read."""
    user, item = (keras.Input((1,), dtype="int32", name=name) for name in ("user", "item"))
    features = keras.Input((20,), name="features")
    one = layers.Flatten()(layers.Embedding(50000, 32)(user))
    other = layers.Flatten()(layers.Embedding(20000, 32)(item))
    x = layers.Concatenate()([one, other, layers.Multiply()([one, other]), features])
    for width in (256, 64):
        x = layers.LeakyReLU()(layers.BatchNormalization()(layers.Dense(width)(x)))
    x = layers.Dense(1, "sigmoid")(x)
    return compiled([user, item, features], x, "adagrad", "binary_crossentropy")
