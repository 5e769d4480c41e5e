"""A small causal decoder that learns to continue sequences of tokens."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=512)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulation", type=int, default=None)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()

VOCABULARY = 256


class TokenAndPosition(layers.Layer):
    def __init__(self, vocabulary, length, width, **kwargs):
        super().__init__(**kwargs)
        self.length = length
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(length, width)

    def call(self, tokens):
        return self.tokens(tokens) + self.positions(ops.arange(self.length))


def decoder(length, width, blocks=2, heads=4):
    inputs = keras.Input((length,), dtype="int32")
    x = TokenAndPosition(VOCABULARY, length, width)(inputs)
    for _ in range(blocks):
        normed = layers.LayerNormalization()(x)
        attended = layers.MultiHeadAttention(heads, width // heads, dropout=args.dropout)(
            normed, normed, use_causal_mask=True
        )
        x = x + attended
        normed = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(normed))
    return keras.Model(inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


keras.utils.set_random_seed(11)
rng = np.random.default_rng(11)
starts = rng.integers(0, VOCABULARY, size=(args.samples, 1))
sequences = (starts + 3 * np.arange(args.length + 1)) % VOCABULARY

model = decoder(args.length, args.width)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3, gradient_accumulation_steps=args.accumulation),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(sequences[:, :-1], sequences[:, 1:], batch_size=args.batch_size, epochs=args.epochs, verbose=2)
