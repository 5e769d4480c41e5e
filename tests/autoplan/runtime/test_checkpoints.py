"""A script that loads a checkpoint of an earlier fit continues in a trial, in which that fit saved nothing."""

import keras
import numpy as np
import pytest

from autoplan.runtime.intercept import Interception, run_one_micro_step


@pytest.fixture
def watching():
    def on_fit(call):
        one.checkpoints.add(call.model, call.arguments.get("callbacks"))
        return run_one_micro_step(call)

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


def test_loading_a_skipped_checkpoint_returns_the_live_model(watching, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(model, "best.keras")
    assert keras.saving.load_model(tmp_path / "best.keras") is model
    assert keras.models.load_model("best.keras") is model


def test_loading_skipped_weights_keeps_the_present_weights(watching, model, tmp_path):
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


def test_an_existing_file_is_loaded(watching, model, tmp_path):
    path = tmp_path / "best.keras"
    fit(model, path)
    model.save(path)
    assert keras.models.load_model(path) is not model


def test_a_missing_file_of_no_checkpoint_is_an_error(watching, model, tmp_path):
    fit(model, tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"other\.keras"):
        keras.models.load_model(tmp_path / "other.keras")
    with pytest.raises(OSError, match=r"other.weights.h5|No such file"):
        model.load_weights(tmp_path / "other.weights.h5")
