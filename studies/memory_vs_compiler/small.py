"""Small models for large batches: 32 to 256 samples on a device, as small models are usually trained."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from studies.memory_vs_compiler.attention import Positions, block
from studies.memory_vs_compiler.heads import SPARSE, classes, logits
from studies.memory_vs_compiler.images import conv_bn


def mnist_convnet() -> Any:
    x = inputs = keras.Input((28, 28, 1))
    for filters in (32, 64):
        x = layers.MaxPooling2D()(layers.Conv2D(filters, 3, activation="relu")(x))
    return classes(inputs, layers.Dropout(0.5)(layers.Flatten()(x)), 10), SPARSE


def small_vgg() -> Any:
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
    return classes(inputs, layers.Dense(128, "relu")(layers.Dropout(0.25)(layers.Flatten()(x))), 10), SPARSE


def batchnorm_convnet() -> Any:
    x = inputs = keras.Input((64, 64, 3))
    for filters in (32, 64, 96):
        x = conv_bn(x, filters, strides=2)
    return classes(inputs, layers.GlobalAveragePooling2D()(conv_bn(x, 128)), 100), SPARSE


def small_resnet() -> Any:
    inputs = keras.Input((32, 32, 3))
    x = conv_bn(inputs, 16)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = conv_bn(conv_bn(x, filters, strides=strides), filters, activation=None)
        skip = x if strides == 1 else conv_bn(x, filters, 1, strides, None)
        x = layers.ReLU()(layers.Add()([y, skip]))
    return classes(inputs, layers.GlobalAveragePooling2D()(x), 10), SPARSE


def depthwise_net() -> Any:
    inputs = keras.Input((96, 96, 3))
    x = conv_bn(inputs, 32, strides=2)
    for filters, strides in ((64, 1), (128, 2), (128, 1)):
        x = layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(x)
        x = conv_bn(layers.ReLU()(layers.BatchNormalization()(x)), filters, 1)
    return classes(inputs, layers.GlobalAveragePooling2D()(x), 50), SPARSE


def pooled_convnet() -> Any:
    x = inputs = keras.Input((64, 64, 3))
    for filters in (48, 96, 192):
        x = layers.MaxPooling2D()(layers.BatchNormalization()(layers.Conv2D(filters, 3, activation="relu")(x)))
    x = layers.Dropout(0.5)(layers.Dense(256, "relu")(layers.Flatten()(x)))
    return classes(inputs, x, 5), SPARSE


def squeeze_net() -> Any:
    inputs = keras.Input((64, 64, 3))
    x = layers.MaxPooling2D(3, 2)(layers.Conv2D(64, 3, strides=2, activation="relu")(inputs))
    for squeeze, expand in ((16, 64), (32, 128)):
        y = layers.Conv2D(squeeze, 1, activation="relu")(x)
        wide = [layers.Conv2D(expand, size, padding="same", activation="relu")(y) for size in (1, 3)]
        x = layers.Concatenate()(wide)
    return classes(inputs, layers.GlobalAveragePooling2D()(layers.Conv2D(20, 1)(x)), 20), SPARSE


def conv_autoencoder() -> Any:
    x = inputs = keras.Input((64, 64, 1))
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    for filters in (64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)), "mse"


def audio_convnet() -> Any:
    x = inputs = keras.Input((4000, 1))
    for filters, size, strides in ((32, 80, 4), (64, 3, 1), (128, 3, 1)):
        x = layers.Conv1D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        x = layers.MaxPooling1D(4)(layers.ReLU()(layers.BatchNormalization()(x)))
    return classes(inputs, layers.GlobalAveragePooling1D()(x), 35), SPARSE


def letters_convnet() -> Any:
    x = inputs = keras.Input((32, 32, 1))
    for filters in (24, 48):
        x = layers.MaxPooling2D()(layers.Conv2D(filters, 5, padding="same", activation="relu")(x))
    return classes(inputs, layers.Dense(120, "relu")(layers.Flatten()(x)), 26), SPARSE


def all_convolutional() -> Any:
    x = inputs = keras.Input((32, 32, 3))
    for filters, strides in ((48, 1), (48, 2), (96, 1), (96, 2)):
        x = layers.Conv2D(filters, 3, strides, padding="same", activation="relu")(x)
    return classes(inputs, layers.GlobalAveragePooling2D()(layers.Conv2D(10, 1)(x)), 10), SPARSE


def ecg_convnet() -> Any:
    x = inputs = keras.Input((1000, 2))
    for filters in (32, 64, 64):
        x = layers.MaxPooling1D(2)(layers.Conv1D(filters, 7, padding="same", activation="relu")(x))
    return classes(inputs, layers.GlobalMaxPooling1D()(x), 5), SPARSE


def lstm_classifier() -> Any:
    tokens = keras.Input((80,), dtype="int32")
    x = layers.LSTM(128)(layers.Embedding(20000, 128)(tokens))
    return keras.Model(tokens, layers.Dense(1, "sigmoid")(x)), "binary_crossentropy"


def sentiment_lstm() -> Any:
    tokens = keras.Input((120,), dtype="int32")
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(layers.Embedding(10000, 100)(tokens))
    x = layers.Bidirectional(layers.LSTM(64))(layers.Dropout(0.3)(x))
    return keras.Model(tokens, layers.Dense(3, "softmax")(x)), SPARSE


def lstm_tagger() -> Any:
    x = inputs = keras.Input((96, 12))
    for units in (96, 96):
        x = layers.LSTM(units, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(7)(x)), logits()


def neural_ratings() -> Any:
    """One table for 26 fields, as recommenders with hashed categories have it."""
    numbers, fields = keras.Input((13,), name="numbers"), keras.Input((26,), dtype="int32", name="fields")
    rows = layers.Flatten()(layers.Embedding(100_000, 32)(fields))
    x = layers.Concatenate()([rows, layers.BatchNormalization()(numbers)])
    for width in (512, 256, 128):
        x = layers.Dense(width, "relu")(x)
    return keras.Model([numbers, fields], layers.Dense(1, "sigmoid")(x)), "binary_crossentropy"


def two_towers() -> Any:
    user, item = (keras.Input((8,), dtype="int32", name=name) for name in ("user", "item"))
    sides = []
    for tokens, count in ((user, 50_000), (item, 20_000)):
        x = layers.GlobalAveragePooling1D()(layers.Embedding(count, 64)(tokens))
        sides.append(layers.Dense(64)(layers.Dense(256, "relu")(x)))
    return keras.Model([user, item], layers.Dot(1, normalize=True)(sides)), "mse"


def tabular_mlp() -> Any:
    x = inputs = keras.Input((100,))
    for width in (512, 512, 256):
        x = layers.Dropout(0.1)(layers.ReLU()(layers.BatchNormalization()(layers.Dense(width)(x))))
    return keras.Model(inputs, layers.Dense(1)(x)), "mae"


def field_attention() -> Any:
    fields = keras.Input((26,), dtype="int32")
    x = layers.Embedding(30_000, 32)(fields)
    for _ in range(2):
        x = block(x, 4)
    return keras.Model(fields, layers.Dense(1, "sigmoid")(layers.Flatten()(x))), "binary_crossentropy"


def _encoder(tokens: Any, x: Any, blocks: int, heads: int, count: int, **options: Any) -> Any:
    x = Positions()(x)
    for _ in range(blocks):
        x = block(x, heads, **options)
    return classes(tokens, layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)), count), SPARSE


def text_encoder() -> Any:
    tokens = keras.Input((128,), dtype="int32")
    return _encoder(tokens, layers.Embedding(20000, 128)(tokens), 2, 4, 4)


def time_series_encoder() -> Any:
    inputs = keras.Input((200, 16))
    return _encoder(inputs, layers.Dense(64)(inputs), 3, 8, 6, act="relu")


def speech_encoder() -> Any:
    inputs = keras.Input((256, 80))
    return _encoder(inputs, layers.Conv1D(128, 3, padding="same")(inputs), 2, 8, 40, act="silu")


def _patches(side: int, patch: int, width: int, blocks: int, heads: int, count: int) -> Any:
    inputs = keras.Input((side, side, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape(((side // patch) ** 2, width))(x)
    return _encoder(inputs, x, blocks, heads, count)


def small_vit() -> Any:
    return _patches(32, 4, 96, 3, 6, 10)


def patch_encoder() -> Any:
    return _patches(64, 4, 96, 2, 6, 50)


def vit_256() -> Any:
    return _patches(128, 8, 128, 2, 8, 100)


def spectrogram_vit() -> Any:
    return _patches(112, 8, 96, 2, 6, 20)


def _decoder(length: int, width: int, vocabulary: int, blocks: int, attend: Any) -> Any:
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(vocabulary, width)(tokens))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + attend()(y, y, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(vocabulary)(layers.LayerNormalization()(x))), logits()


def char_decoder() -> Any:
    return _decoder(256, 96, 128, 2, lambda: layers.MultiHeadAttention(6, 16))


def music_decoder() -> Any:
    return _decoder(512, 64, 400, 2, lambda: layers.MultiHeadAttention(4, 16))


def gqa_decoder() -> Any:
    return _decoder(256, 128, 1000, 2, lambda: layers.GroupQueryAttention(16, 8, 2))


def demand_lstm() -> Any:
    """Forecasts 24 hours of one value from 168 hours of eight values."""
    inputs = keras.Input((168, 8))
    x = layers.LSTM(64)(layers.LSTM(128, return_sequences=True)(inputs))
    return keras.Model(inputs, layers.Dense(24)(layers.Dense(64, "relu")(x))), "mse"


def entity_lstm() -> Any:
    tokens = keras.Input((64,), dtype="int32")
    x = layers.Dropout(0.2)(layers.Embedding(8000, 64)(tokens))
    x = layers.Bidirectional(layers.LSTM(96, return_sequences=True))(x)
    return keras.Model(tokens, layers.Dense(9)(x)), logits()


def keyword_gru() -> Any:
    x = inputs = keras.Input((98, 40))
    for sequences in (True, False):
        x = layers.GRU(128, return_sequences=sequences)(x)
    return classes(inputs, x, 12), SPARSE


def lstm_autoencoder() -> Any:
    inputs = keras.Input((100, 6))
    x = layers.LSTM(32)(layers.LSTM(64, return_sequences=True)(inputs))
    x = layers.LSTM(32, return_sequences=True)(layers.RepeatVector(100)(x))
    return keras.Model(inputs, layers.Dense(6)(layers.LSTM(64, return_sequences=True)(x))), "mae"


def session_gru() -> Any:
    """Predicts the next of 12,000 items after each item of a session."""
    items = keras.Input((20,), dtype="int32")
    x = layers.GRU(100, return_sequences=True)(layers.Embedding(12_000, 64)(items))
    return keras.Model(items, layers.Dense(12_000)(x)), logits()


def wide_and_deep() -> Any:
    fields = keras.Input((20,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(50_000, 16)(fields))
    for width in (256, 128):
        x = layers.Dense(width, "relu")(x)
    wide = layers.Flatten()(layers.Embedding(50_000, 1)(fields))
    return keras.Model(fields, layers.Dense(1, "sigmoid")(layers.Concatenate()([x, wide]))), "binary_crossentropy"


class Pairs(layers.Layer):
    """The sum of the products of all pairs of rows (Rendle 2010, equation 5)."""

    def call(self, rows: Any) -> Any:
        return (ops.square(ops.sum(rows, 1)) - ops.sum(ops.square(rows), 1)) / 2


def factorization_machine() -> Any:
    fields = keras.Input((30,), dtype="int32")
    pairs = Pairs()(layers.Embedding(40_000, 24)(fields))
    x = layers.Concatenate()([pairs, layers.Flatten()(layers.Embedding(40_000, 1)(fields))])
    return keras.Model(fields, layers.Dense(1, "sigmoid")(x)), "binary_crossentropy"


def matrix_factorization() -> Any:
    user, item = (keras.Input((1,), dtype="int32", name=name) for name in ("user", "item"))
    factors = [layers.Embedding(count, 48)(one) for one, count in ((user, 60_000), (item, 30_000))]
    biases = [layers.Embedding(count, 1)(one) for one, count in ((user, 60_000), (item, 30_000))]
    score = layers.Add()([layers.Dot(2)(factors), *biases])
    return keras.Model([user, item], layers.Flatten()(score)), "mse"
