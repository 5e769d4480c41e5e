"""A layer of attention, and its training step as it is traced for a device."""

from dataclasses import replace
from functools import cache

import keras

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import seen_as
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.hardware.platform import TargetPlatform

A100, H100, V100 = (TargetPlatform("gpu", capability) for capability in (8.0, 9.0, 7.0))
TPU = TargetPlatform("tpu")
BATCH, HEADS, LENGTH, HEAD = 2, 2, 128, 16
MASKS = {
    "pairs": lambda x: keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))) > 0,
    "keys": lambda x: keras.ops.transpose(x, (0, 2, 1))[:, :1] > 0,
}
"""Masks of (queries, keys), and of keys alone, as of padded sequences."""


def language_model(*, causal, dtype="mixed_bfloat16", head=HEAD, dropout=0.0, mask=""):
    keras.config.set_dtype_policy(dtype)
    try:
        x = inputs = keras.Input((LENGTH, HEADS * head))
        where = keras.layers.Lambda(MASKS[mask])(x) if mask else None
        y = keras.layers.MultiHeadAttention(HEADS, head, dropout=dropout)(
            x, x, use_causal_mask=causal, attention_mask=where
        )
        model = keras.Model(inputs, keras.layers.Dense(1)(x + y))
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(optimizer="sgd", loss="mse")
    return model


def traced(platform, **how):
    model = language_model(**how)
    with seen_as(platform) as answers:
        workload = trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
    return replace(workload, answers=answers.given)


@cache
def kept(platform, causal):
    return traced(platform, causal=causal)
