"""A decoder with 69 billion parameters in plain Keras, shaped as LLaMA-2-70B (Touvron et al. 2023, table 1).

80 blocks of grouped-query attention with rotary positions and a gated feed-forward part, RMSNorm before each. It has no
data. The environment variable SIZE selects a smaller decoder.
"""

import os

import keras
from keras import layers, ops

SIZES = {
    # blocks, width, heads, key and value heads, width of the feed-forward part, vocabulary, sequence
    "tiny": (2, 64, 4, 2, 192, 1000, 32),
    "small": (12, 768, 12, 4, 2048, 32000, 1024),
    "70b": (80, 8192, 64, 8, 28672, 32000, 4096),
    "deep": (240, 8192, 64, 8, 28672, 32000, 4096),
}


class Attention(layers.Layer):
    """Causal attention whose queries share keys and values in groups, with rotary positions."""

    def __init__(self, width, heads, shared, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.shared, self.dim = heads, shared, width // heads
        self.query = layers.Dense(width, use_bias=False)
        self.key = layers.Dense(shared * self.dim, use_bias=False)
        self.value = layers.Dense(shared * self.dim, use_bias=False)
        self.out = layers.Dense(width, use_bias=False)

    def call(self, x):
        length = x.shape[1]
        query = self._rotated(ops.reshape(self.query(x), (-1, length, self.heads, self.dim)))
        key = self._rotated(ops.reshape(self.key(x), (-1, length, self.shared, self.dim)))
        value = ops.reshape(self.value(x), (-1, length, self.shared, self.dim))
        key, value = (ops.repeat(one, self.heads // self.shared, axis=2) for one in (key, value))
        mixed = ops.dot_product_attention(query, key, value, is_causal=True)
        return self.out(ops.reshape(mixed, (-1, length, self.heads * self.dim)))

    def _rotated(self, x):
        """Su et al. 2021, equation 34."""
        length, half = x.shape[1], self.dim // 2
        rates = ops.power(10000.0, -ops.arange(half, dtype="float32") / half)
        angles = ops.expand_dims(ops.arange(length, dtype="float32"), 1) * rates
        cos, sin = (ops.cast(one(angles), x.dtype)[None, :, None, :] for one in (ops.cos, ops.sin))
        left, right = ops.split(x, 2, axis=-1)
        return ops.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def block(x, width, heads, shared, inner):
    x = x + Attention(width, heads, shared)(layers.RMSNormalization()(x))
    normed = layers.RMSNormalization()(x)
    gate = layers.Dense(inner, activation="silu", use_bias=False)(normed)
    up = layers.Dense(inner, use_bias=False)(normed)
    return x + layers.Dense(width, use_bias=False)(gate * up)


def build_model():
    blocks, width, heads, shared, inner, vocabulary, sequence = SIZES[os.environ.get("SIZE", "70b")]
    tokens = keras.Input((sequence,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(blocks):
        x = block(x, width, heads, shared, inner)
    logits = layers.Dense(vocabulary, use_bias=False)(layers.RMSNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile(keras.optimizers.AdamW(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
