"""Losses of a few updates, from which two configurations are compared."""

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.losses import record_update_losses
from autoplan.worker.measure.trial_fit import TrialFit


def dropout():
    return keras.layers.Dropout(0.5)


def recorded(*, layers=(), accumulation=None, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *(make() for make in layers), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation), "mse")
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "batch_size": 8, "verbose": 0}
    call = FitCall(1, model, arguments, keras.Model.fit)
    fit = TrialFit(call, data_facts.describe(arguments), None, backends.get("jax"), options, lambda _: None)
    return record_update_losses(fit)


def test_every_update_has_a_loss_and_training_lowers_it():
    found = recorded(updates=12)
    assert len(found["losses"]) == 12
    assert found["losses"][-1] < found["losses"][0]
    assert found["deterministic_model"]


def test_the_loss_of_an_update_is_the_mean_of_its_micro_steps():
    """Weights do not change within an update, so the first two micro-steps of both runs have the same weights."""
    single = recorded(updates=1)["losses"][0]
    both = recorded(updates=3, accumulation=2)["losses"]
    assert len(both) == 3
    assert both[0] != single  # the mean with the second batch


def test_the_same_seed_gives_the_same_losses():
    first, second = (recorded(updates=4, seed=7, layers=[dropout]) for _ in range(2))
    assert first["losses"] == second["losses"]
    assert first["seed"] == 7
    assert not recorded(updates=1, layers=[dropout])["deterministic_model"]


def test_initial_weights_go_from_one_process_to_another(tmp_path):
    kept = str(tmp_path / "weights.npz")
    first = recorded(updates=2, weights_to=kept)
    keras.utils.set_random_seed(99)
    assert recorded(updates=2, weights_from=kept)["losses"] == pytest.approx(first["losses"])
