"""A causal language model of KerasHub, built from its sizes instead of a preset, so that nothing is downloaded."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import keras_hub
import numpy as np

SAMPLES, LENGTH, VOCABULARY = 512, 24, 500

keras.utils.set_random_seed(31)
rng = np.random.default_rng(31)
tokens = rng.integers(1, VOCABULARY, (SAMPLES, LENGTH + 1))
lengths = rng.integers(LENGTH // 2, LENGTH, (SAMPLES, 1))
mask = np.arange(LENGTH) < lengths

backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=VOCABULARY,
    num_layers=2,
    num_heads=2,
    hidden_dim=48,
    intermediate_dim=96,
    dropout=0.1,
    max_sequence_length=LENGTH,
)
model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
model.compile(
    optimizer=keras.optimizers.AdamW(3e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
model.fit(
    {"token_ids": tokens[:, :-1], "padding_mask": mask},
    tokens[:, 1:],
    sample_weight=mask.astype("float32"),
    batch_size=32,
    epochs=2,
    verbose=2,
)
