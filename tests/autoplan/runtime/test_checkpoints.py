"""A script that loads what an earlier fit saved goes on in a trial, where that fit saved nothing."""

import keras
import numpy as np
import pytest

from autoplan.runtime.intercept import Interception, one_micro_step


@pytest.fixture
def watching():
    def on_fit(call):
        one.checkpoints.note(call.model, call.arguments.get("callbacks"))
        return one_micro_step(call)

    one = Interception(on_fit)
    one.install()
    yield one
    one.uninstall()


@pytest.fixture
def model():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def fit(model, path):
    model.fit(np.zeros((8, 4)), np.zeros((8, 2)), callbacks=[keras.callbacks.ModelCheckpoint(path)], verbose=0)


def test_the_best_model_is_the_one_at_hand(watching, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(model, "best.keras")
    assert keras.saving.load_model(tmp_path / "best.keras") is model
    assert keras.models.load_model("best.keras") is model


def test_the_best_weights_are_those_that_there_are(watching, model, tmp_path):
    path = str(tmp_path / "best.weights.h5")
    model.fit(
        np.zeros((8, 4)),
        np.zeros((8, 2)),
        callbacks=[keras.callbacks.ModelCheckpoint(path, save_weights_only=True)],
        verbose=0,
    )
    before = model.get_weights()
    model.load_weights(path)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


def test_a_file_that_is_there_is_read(watching, model, tmp_path):
    path = tmp_path / "best.keras"
    fit(model, path)
    model.save(path)
    assert keras.models.load_model(path) is not model


def test_a_file_of_nobody_is_missing(watching, model, tmp_path):
    fit(model, tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"other\.keras"):
        keras.models.load_model(tmp_path / "other.keras")
    with pytest.raises(OSError, match=r"other.weights.h5|No such file"):
        model.load_weights(tmp_path / "other.weights.h5")
