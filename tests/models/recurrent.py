"""Recurrent layers, and their training step as it is traced for a device."""

from dataclasses import replace

import keras

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import seen_as
from autoplan.worker.trace.train_step import trace_train_step

BATCH, LENGTH, INPUTS, UNITS = 4, 6, 3, 5
LAYERS = keras.layers


def recurrent_model(*layers, batch=None, masks=False):
    """The layers, then a dense layer; `masks`: positions are left out."""
    first = [LAYERS.Masking()] if masks else []
    model = keras.Sequential([keras.Input((LENGTH, INPUTS), batch_size=batch), *first, *layers, LAYERS.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def traced(platform, *layers, **how):
    model = recurrent_model(*layers, **how)
    with seen_as(platform) as answers:
        workload = trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
    return replace(workload, answers=answers.given)
