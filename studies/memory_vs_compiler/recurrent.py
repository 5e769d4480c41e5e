"""Small recurrent models for sequences: forecasts, tags, keywords, reconstruction and the next item of a session."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from studies.memory_vs_compiler.heads import SPARSE, classes, logits


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
