"""A cosine schedule with warm-up, an exponential moving average of the weights and accumulation, all counting steps."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

SAMPLES, BATCH, EPOCHS = 2048, 32, 3
STEPS = SAMPLES // BATCH * EPOCHS

keras.utils.set_random_seed(15)
x = np.random.default_rng(15).normal(size=(SAMPLES, 24)).astype("float32")
y = np.sin(x).sum(axis=1, keepdims=True)

schedule = keras.optimizers.schedules.CosineDecay(
    0.0, decay_steps=STEPS - STEPS // 10, warmup_target=3e-3, warmup_steps=STEPS // 10
)
optimizer = keras.optimizers.AdamW(schedule, use_ema=True, ema_momentum=0.98, gradient_accumulation_steps=4)
model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(96, activation="gelu"), keras.layers.Dense(1)])
model.compile(optimizer=optimizer, loss="mse")
history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=2)
