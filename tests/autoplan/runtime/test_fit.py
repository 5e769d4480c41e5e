"""The configuration of a fit before its first micro-step."""

import keras
import pytest

from autoplan.runtime import fit
from autoplan.runtime.apply import Change
from cost_models.config import Batch, TrainConfig


class Adds(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs))
        return inputs


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
    assert fit.padding_is_exact(model) is by_weight_alone
    for padding, exact in (("same", True), ("differs", False), ("not_known", by_weight_alone)):
        probed = Change(TrainConfig(Batch(8)), TrainConfig(Batch(4, accumulation=2)), padding)
        assert fit.padding_is_exact(model, probed) is exact
