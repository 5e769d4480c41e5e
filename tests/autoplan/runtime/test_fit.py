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


class TrainStepAlone(keras.Model):
    """A generative model: layers, a custom train_step, and no `call`."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])

    def train_step(self, *arguments):
        return {}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def about_to_fit(model):
    model.compile("sgd", "mse")
    arguments = {"x": np.zeros((8, 4), "float32"), "y": np.zeros((8, 2), "float32")}
    return model, arguments, data_facts.describe(arguments)


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


def test_a_subclassed_model_is_built_before_it_fits():
    model, arguments, facts = about_to_fit(Subclassed())
    fit.ensure_built(model, arguments, facts)
    assert [tuple(variable.shape) for variable in model.trainable_variables] == [(4, 2), (2,)]


def test_a_model_without_call_is_not_built():
    model, arguments, facts = about_to_fit(TrainStepAlone())
    fit.ensure_built(model, arguments, facts)
    assert len(model.trainable_variables) == 2
