"""A decoder in plain Keras without data. SIZE names its size; each block is one rematerialized layer."""

import os

import keras

SIZES = {
    # layers, width, heads, width of the feed-forward part, vocabulary, sequence
    "tiny": (2, 64, 4, 256, 1000, 32),
    "1b": (16, 2048, 16, 8192, 32000, 1024),
    "7b": (32, 4096, 32, 11008, 32000, 2048),
}


@keras.saving.register_keras_serializable()
class Block(keras.layers.Layer):
    """Attention and a gated feed-forward part, each with a normalization before it and a residual connection."""

    def __init__(self, width, heads, inner, **kwargs):
        super().__init__(**kwargs)
        self.width, self.heads, self.inner = width, heads, inner
        self.before_attention = keras.layers.RMSNormalization()
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        self.before_feeding = keras.layers.RMSNormalization()
        self.gate = keras.layers.Dense(inner, activation="silu", use_bias=False)
        self.up = keras.layers.Dense(inner, use_bias=False)
        self.down = keras.layers.Dense(width, use_bias=False)

    def build(self, shape):
        self.before_attention.build(shape)
        self.attention.build(shape, shape)
        self.before_feeding.build(shape)
        self.gate.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], self.inner))

    def call(self, x):
        normed = self.before_attention(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        normed = self.before_feeding(x)
        return x + self.down(self.gate(normed) * self.up(normed))

    def get_config(self):
        return {**super().get_config(), "width": self.width, "heads": self.heads, "inner": self.inner}


def build_model():
    layers, width, heads, inner, vocabulary, sequence = SIZES[os.environ.get("SIZE", "tiny")]
    names = [f"block_{index}" for index in range(layers)]
    with keras.RematScope(mode="list_of_layers", layer_names=names):
        tokens = keras.Input((sequence,), dtype="int32")
        x = keras.layers.Embedding(vocabulary, width)(tokens)
        for name in names:
            x = Block(width, heads, inner, name=name)(x)
        x = keras.layers.RMSNormalization()(x)
        logits = keras.layers.Dense(vocabulary, use_bias=False)(x)
    model = keras.Model(tokens, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss)
    return model
