"""Character-level sequence to sequence with LSTMs: two inputs of different lengths, states handed on."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

TOKENS, LATENT = 20, 24

keras.utils.set_random_seed(9)
rng = np.random.default_rng(9)
source = rng.integers(1, TOKENS, (502, 10))
target = np.concatenate([np.zeros((502, 1), dtype=int), source[:, ::-1][:, :8]], axis=1)
encoder_input_data = np.eye(TOKENS, dtype="float32")[source]
decoder_input_data = np.eye(TOKENS, dtype="float32")[target[:, :-1]]
decoder_target_data = np.eye(TOKENS, dtype="float32")[target[:, 1:]]

encoder_inputs = keras.Input(shape=(None, TOKENS))
encoder_outputs, state_h, state_c = keras.layers.LSTM(LATENT, return_state=True)(encoder_inputs)
decoder_inputs = keras.Input(shape=(None, TOKENS))
decoder_lstm = keras.layers.LSTM(LATENT, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_outputs = keras.layers.Dense(TOKENS, activation="softmax")(decoder_outputs)
model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
model.fit(
    [encoder_input_data, decoder_input_data],
    decoder_target_data,
    batch_size=64,
    epochs=4,
    validation_split=0.2,
    verbose=2,
)
