"""The configuration of a fit before its first micro-step."""

import keras
import numpy as np
import pytest

from autoplan.runtime import fit
from autoplan.runtime.apply import Change
from autoplan.runtime.data import data_facts
from cost_models.config import Batch, TrainConfig


class Adds(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs))
        return inputs


ROWS = {"x": np.ones((6, 4), "float32"), "y": np.ones((6, 1), "float32"), "batch_size": 4}


@pytest.mark.parametrize(
    ("layer", "by_weight_alone"),
    [
        (keras.layers.Dense(3), True),
        (keras.layers.Dense(3, activity_regularizer="l2"), False),
        (keras.layers.BatchNormalization(), False),
        (Adds(), False),
    ],
)
def test_padding_is_exact_only_if_rows_of_weight_zero_have_no_effect(layer, by_weight_alone):
    model = keras.Sequential([keras.layers.Input((4,)), layer, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    assert fit.padding_is_exact(model, ROWS, data_facts.describe(ROWS)) is by_weight_alone
    for padding, exact in (("same", True), ("differs", False), ("not_known", by_weight_alone)):
        probed = Change(TrainConfig(Batch(8)), TrainConfig(Batch(4, accumulation=2)), padding)
        assert fit.padding_is_exact(model, ROWS, data_facts.describe(ROWS), probed) is exact


@pytest.mark.parametrize(
    ("metric", "more", "exact"),
    [
        ("mae", {}, True),
        ("mae", {"sample_weight": np.ones(6, "float32")}, False),
        (lambda true, predicted: keras.ops.max(predicted), {}, False),
    ],
)
def test_padding_that_was_compared_is_exact_while_metrics_can_leave_it_out(metric, more, exact):
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric])
    probed = Change(TrainConfig(Batch(8)), TrainConfig(Batch(4, accumulation=2)), "same")
    arguments = {**ROWS, **more}
    assert fit.padding_is_exact(model, arguments, data_facts.describe(arguments), probed) is exact
