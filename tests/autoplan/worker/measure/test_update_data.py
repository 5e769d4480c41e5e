"""The rows on which a few updates are compared."""

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.apply import Change
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.trial_fit import TrialFit
from autoplan.worker.measure.update_data import data_of_updates
from tests.builders.observations import config

EFFECTIVE = 8


def chosen(updates, *, rows, own=None, wanted=None, accumulations=(1, 2), regularizer=None, **arguments):
    own = own or config(EFFECTIVE)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, activity_regularizer=regularizer)])
    model.compile("sgd", "mse")
    x = np.arange(rows, dtype="float32").reshape(-1, 1)
    given = {"x": x, "y": x, "batch_size": own.batch.global_size, **arguments}
    call, change = FitCall(1, model, given, keras.Model.fit), Change(own, wanted or own)
    options = {"accumulations": list(accumulations)}
    return data_of_updates(
        TrialFit(call, data_facts.describe(given), change, backends.get("jax"), options, lambda _: None), updates
    )


@pytest.mark.parametrize(
    ("rows", "first", "remainder_rows"),
    [
        pytest.param(80, 80 - 3 * EFFECTIVE, 0, id="whole updates"),
        pytest.param(84, 84 - 2 * EFFECTIVE - 4, 4, id="with the partial one"),
        pytest.param(20, 0, 4, id="fewer than asked for"),
    ],
)
def test_the_last_updates_of_an_epoch_are_compared(rows, first, remainder_rows):
    found = chosen(3, rows=rows)
    assert found.arguments["x"].ravel().tolist() == list(range(first, rows))
    assert found.remainder_rows == remainder_rows
    assert found.arguments["shuffle"] is False


def test_counted_steps_that_reach_the_end_of_the_data_are_compared_there():
    found = chosen(3, rows=84, steps_per_epoch=3, epochs=4)
    assert found.arguments["x"].ravel().tolist() == list(range(84 - 2 * EFFECTIVE - 4, 84))
    assert (found.arguments["steps_per_epoch"], found.remainder_rows) == (None, 4)


def test_validation_rows_are_not_trained_on():
    found = chosen(3, rows=100, validation_split=0.16)
    assert found.arguments["x"].ravel().tolist() == list(range(84 - 2 * EFFECTIVE - 4, 84))
    assert found.arguments["validation_split"] == 0.0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"accumulations": (1, 8), "regularizer": "l2"}, id="rows are left out by one of the two"),
        pytest.param({"own": config(4, 2)}, id="the next epoch completes the last update of the script"),
        pytest.param({"steps_per_epoch": 3}, id="the script never reaches the end of its data"),
    ],
)
def test_otherwise_the_first_updates_are_compared(case):
    found = chosen(3, rows=84, **case)
    assert found.arguments == {"shuffle": False}
    assert found.remainder_rows == 0


def test_data_of_unknown_length_are_read_from_their_start():
    def batches():
        while True:
            yield np.zeros((EFFECTIVE, 1), "float32"), np.zeros((EFFECTIVE, 1), "float32")

    assert chosen(3, rows=8, x=batches(), y=None).arguments == {}
