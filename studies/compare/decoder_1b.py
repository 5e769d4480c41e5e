"""A causal decoder of about 1.04 billion parameters in plain Keras, with AdamW in float32, on sequences of 1,024."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops

VOCABULARY, LENGTH, WIDTH, BLOCKS, HEADS = 32_000, 1024, 2048, 18, 16
SEQUENCES, BATCH = 1024, 32


class TokenAndPosition(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.Embedding(VOCABULARY, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def call(self, tokens):
        return self.tokens(tokens) + self.positions(ops.arange(LENGTH))


def decoder():
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = TokenAndPosition()(inputs)
    for _ in range(BLOCKS):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normed, normed, use_causal_mask=True)
        normed = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(normed))
    return keras.Model(inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


tokens = np.arange(SEQUENCES * (LENGTH + 1), dtype="int32").reshape(SEQUENCES, LENGTH + 1) % VOCABULARY

model = decoder()
model.compile(
    optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.1),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=BATCH)
