"""Events of an epoch that a verification also runs: checkpoints, and the batch of a validation."""

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.apply import Change
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.epoch_events import validation_batch
from autoplan.worker.measure.measurement import measure_fit
from autoplan.worker.measure.trial_fit import TrialFit
from tests.builders.observations import config

QUICK = {"groups": 3, "group_seconds": 0.02, "max_seconds": 10}


class WithoutConfig(keras.Model):
    """A model with an array as its argument, so that Keras cannot save its config."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs * self.table)


class NotSaved(keras.Sequential):
    """A model that Keras cannot save, like a trainer around other models on TensorFlow."""

    def save_weights(self, *_, **__):
        raise ValueError("You are saving a model that has not yet been built.")

    save = save_weights


def measured(model, **arguments):
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "verbose": 0, **arguments}
    call = FitCall(1, model, arguments, keras.Model.fit)
    facts = data_facts.describe(call.arguments)
    options = {**QUICK, "checkpoint": True}
    fit = TrialFit(call, facts, None, backends.get("jax"), options, lambda _: None)
    return measure_fit(fit, 0.0, simulated=False)


def test_a_model_that_can_be_saved_is_saved_whole():
    assert measured(keras.Sequential([keras.layers.Dense(1)])).notes == ["checkpoint"]


def test_only_the_weights_of_a_model_without_config_are_saved():
    assert measured(WithoutConfig(np.ones(3, "float32"))).notes == ["weights"]


def test_a_model_that_keras_cannot_save_is_measured():
    assert measured(NotSaved([keras.layers.Dense(1)])).notes == []


def test_a_script_that_saves_a_model_without_config_fails(tmp_path):
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
    with pytest.raises(NotImplementedError, match="get_config"):
        measured(WithoutConfig(np.ones(3, "float32")), callbacks=[saving])


def test_a_script_that_saves_the_weights_of_an_unsavable_model_fails(tmp_path):
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "model.weights.h5", save_weights_only=True)
    with pytest.raises(ValueError, match="not yet been built"):
        measured(NotSaved([keras.layers.Dense(1)]), callbacks=[saving])


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({}, 16),
        ({"validation_batch_size": 8}, 8),
        ({"validation_steps": 3}, 64),
        ({"validation_batch_size": 8, "validation_steps": 3}, 8),
    ],
)
def test_a_validation_has_the_batch_size_of_fit_under_the_plan(arguments, size):
    """A plan that splits an update to save memory must not fail in a validation that no fit would run."""
    facts = data_facts.DataFacts("arrays", 256, 64, 4, explicit_steps=False)
    change = Change(config(64), config(16, 4))
    assert validation_batch(arguments, facts, change) == size
    assert validation_batch(arguments, facts, None) == arguments.get("validation_batch_size", 64)
