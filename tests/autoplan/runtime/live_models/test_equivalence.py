"""Incomplete configs are detected before tuning."""

import random

import keras
import numpy as np
import pytest
from keras import layers

from autoplan.runtime.live_models import blueprints, state
from autoplan.runtime.live_models.equivalence import first_difference, preserved_global_state
from autoplan.runtime.live_models.package import rebuild
from tests.models import live


def difference(model, x=None):
    blueprint = blueprints.record(model)
    return first_difference(model, rebuild(blueprint, state.capture(model), seeds=True), x)


def compiled(*inside):
    model = keras.Sequential([keras.Input((8,)), *inside, layers.Dense(4)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_models_with_complete_configs_are_equivalent(kind):
    model, x, _ = live.trained(kind)
    assert difference(model) is None
    assert difference(model, x) is None


class Forgetful(keras.layers.Layer):
    """Its config omits an argument that has a default."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return super().get_config()


class Hidden(Forgetful):
    """Stores the value in a private attribute."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self._hidden = factor

    def call(self, x):
        return x * self._hidden


class InTraining(Hidden):
    """The difference only appears in training."""

    def call(self, x, training=False):
        return x * self._hidden if training else x


def test_an_argument_that_a_config_omits_is_named():
    assert difference(compiled(Forgetful(3.0, name="mine"))) == (
        "Forgetful 'mine' loses its attribute 'factor', which get_config omits"
    )
    assert difference(compiled(Forgetful())) is None


@pytest.mark.parametrize("kind", [Hidden, InTraining])
def test_different_results_reveal_differences_without_attributes(kind):
    assert "computes other results" in difference(compiled(kind(3.0)))
    assert difference(compiled(kind())) is None


def test_an_attribute_that_was_set_after_init_is_a_difference():
    class Weighted(keras.Model):
        def train_step(self, state, data):
            return super().train_step(state, data)

    inputs = keras.Input((8,))
    model = Weighted(inputs, layers.Dense(4)(inputs))
    model.compile("sgd", "mse")
    assert difference(model) is None
    model.temperature = 3.0
    assert "loses its attribute 'temperature'" in difference(model)


def test_layers_of_other_types_are_a_difference():
    model = compiled(live.Block(8))
    model.layers[0].inner.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    assert "gets the dtype policy float32, not mixed_bfloat16" in difference(model)


def test_comparing_changes_neither_weights_nor_seeds():
    model, x, _ = live.trained("functional")
    before = [variable.numpy() for variable in model.variables]
    assert difference(model, x) is None
    for variable, kept in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), kept)


def test_generators_and_name_counters_of_the_process_are_restored():
    def draws():
        keras.utils.set_random_seed(3)
        drawn = keras.random.normal(())
        return float(drawn)

    first = draws()
    numbers = random.random(), np.random.rand(), float(keras.random.normal(())), layers.Dense(1).name
    assert draws() == first
    with preserved_global_state():
        layers.Dense(1)
        random.random(), np.random.rand(), keras.random.normal(())
    again = random.random(), np.random.rand(), float(keras.random.normal(())), layers.Dense(1).name
    assert again[:3] == numbers[:3]
    assert int(again[3].removeprefix("dense_")) == int(numbers[3].removeprefix("dense_") or 0) + 1
