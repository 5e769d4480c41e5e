"""Models of sequences: a few blocks of attention or token mixing each, on sequences of usual lengths."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from studies.memory_vs_compiler.heads import SPARSE, classes, logits


def block(
    x: Any, heads: int, *, dropout: float = 0, causal: bool = False, act: Any = "gelu", memory: Any = None
) -> Any:
    width = x.shape[-1]

    def attend(x: Any, memory: Any, causal: bool) -> Any:
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)
        y = attention(y, y if memory is None else memory, use_causal_mask=causal)
        return x + (layers.Dropout(dropout)(y) if dropout else y)

    x = attend(x, None, causal)
    if memory is not None:
        x = attend(x, memory, False)
    y = layers.Dense(4 * width, act)(layers.LayerNormalization(epsilon=1e-5)(x))
    y = layers.Dense(width)(y)
    return x + (layers.Dropout(dropout)(y) if dropout else y)


class Positions(layers.Layer):
    """A layer that adds a learned vector to each position."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="normal", name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def _language(length: int, width: int, vocabulary: int, blocks: int, heads: int, dropout: float, act: Any) -> Any:
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(vocabulary, width)(tokens))
    for _ in range(blocks):
        x = block(x, heads, dropout=dropout, causal=True, act=act)
    return tokens, layers.LayerNormalization(epsilon=1e-5)(x)


def decoder() -> Any:
    tokens, x = _language(512, 768, 32000, 3, 12, 0.0, "gelu")
    return keras.Model(tokens, layers.Dense(32000, use_bias=False)(x)), logits()


def decoder_tied() -> Any:
    tokens = keras.Input((1024,), dtype="int32")
    embedding = layers.ReversibleEmbedding(16384, 512)
    x = Positions()(embedding(tokens))
    for _ in range(3):
        x = block(x, 8, causal=True, act="silu")
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(tokens, embedding(x, reverse=True)), logits()


def decoder_dropout() -> Any:
    tokens, x = _language(256, 1024, 8192, 3, 16, 0.1, "relu")
    return keras.Model(tokens, layers.Dense(8192)(x)), logits()


def encoder() -> Any:
    tokens = keras.Input((384,), dtype="int32")
    x = layers.Embedding(30000, 512, mask_zero=True)(tokens)
    x = layers.Dropout(0.1)(layers.LayerNormalization()(Positions()(x)))
    for _ in range(3):
        y = layers.MultiHeadAttention(8, 64, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
        y = layers.Dense(512)(layers.Dense(2048, lambda x: keras.activations.gelu(x, approximate=False))(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    return classes(tokens, layers.GlobalAveragePooling1D()(x), 4), SPARSE


def vit() -> Any:
    inputs = keras.Input((224, 224, 3))
    x = layers.Reshape((196, 384))(layers.Conv2D(384, 16, strides=16)(inputs))
    x = Positions()(x)
    for _ in range(4):
        x = block(x, 6)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, layers.Dense(1000)(x)), logits()


def seq2seq() -> Any:
    source, target = (
        keras.Input((256,), dtype="int32", name="source"),
        keras.Input((128,), dtype="int32", name="target"),
    )
    memory, x = (Positions()(layers.Embedding(16000, 512)(tokens)) for tokens in (source, target))
    for _ in range(2):
        memory = block(memory, 8, dropout=0.1, act="relu")
    for _ in range(2):
        x = block(x, 8, dropout=0.1, causal=True, act="relu", memory=memory)
    return keras.Model([source, target], layers.Dense(16000)(x)), logits()


def mlp_mixer() -> Any:
    inputs = keras.Input((192, 192, 3))
    x = layers.Reshape((144, 384))(layers.Conv2D(384, 16, strides=16)(inputs))
    for _ in range(4):
        y = layers.Permute((2, 1))(layers.LayerNormalization(epsilon=1e-6)(x))
        y = layers.Dense(144)(layers.Dense(256, "gelu")(y))
        x = x + layers.Permute((2, 1))(y)
        y = layers.Dense(1536, "gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = x + layers.Dense(384)(y)
    return classes(inputs, layers.GlobalAveragePooling1D()(x), 100), SPARSE


class Experts(layers.Layer):
    """A dense mixture of experts: every token uses all experts, weighted by a softmax."""

    def __init__(self, count: int, **options: Any) -> None:
        super().__init__(**options)
        self.count = count

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.router = self.add_weight(shape=(width, self.count), initializer="normal", name="router")
        self.up = self.add_weight(shape=(self.count, width, 2 * width), initializer="normal", name="up")
        self.down = self.add_weight(shape=(self.count, 2 * width, width), initializer="normal", name="down")

    def call(self, x: Any) -> Any:
        weights = ops.softmax(ops.matmul(x, self.router), axis=-1)
        y = ops.gelu(ops.einsum("btw,ewh->bteh", x, self.up))
        return ops.einsum("bteh,ehw,bte->btw", y, self.down, weights)


def mixture_of_experts() -> Any:
    tokens = keras.Input((256,), dtype="int32")
    x = layers.Embedding(16000, 384)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(6, 64)(y, y, use_causal_mask=True)
        x = x + Experts(4)(layers.LayerNormalization()(x))
    return keras.Model(tokens, layers.Dense(16000)(x)), logits()


def perceiver() -> Any:
    inputs = keras.Input((2048, 64))
    x = layers.Dense(256)(inputs)
    latents = layers.Dense(256)(layers.AveragePooling1D(16)(inputs))
    for _ in range(2):
        latents = block(latents, 4, memory=layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(40)(layers.GlobalAveragePooling1D()(latents))), logits()
