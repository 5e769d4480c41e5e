"""Arguments of `fit` in a trial."""

import keras
import numpy as np

from autoplan.runtime import backends
from autoplan.runtime.apply import Change
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.trial_fit import TrialFit
from tests.builders.observations import config

ARGUMENTS = {"x": np.zeros((256, 3), "float32"), "y": np.zeros((256, 1), "float32"), "batch_size": 64, "epochs": 5}


def trial(change=None):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    call = FitCall(1, model, dict(ARGUMENTS), keras.Model.fit)
    return TrialFit(call, data_facts.describe(ARGUMENTS), change, backends.get("jax"), {}, lambda _: None)


def test_without_a_change_the_scripts_arguments_and_batch_are_used():
    fit = trial()
    assert (fit.global_batch, fit.effective_batch) == (64, 64)
    assert fit.arguments() == ARGUMENTS
    assert fit.arguments({"epochs": 1}) == {**ARGUMENTS, "epochs": 1}


def test_a_change_sets_the_batch_of_the_trial():
    fit = trial(Change(config(64), config(16, 4)))
    assert (fit.global_batch, fit.effective_batch) == (16, 64)
    assert fit.arguments()["batch_size"] == 16
    assert fit.arguments()["epochs"] == 5
