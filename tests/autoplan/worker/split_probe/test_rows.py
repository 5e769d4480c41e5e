from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts
from autoplan.worker.split_probe.rows import TrainingRows, affordable_rows, one_batch_arguments


def chosen(arguments, count):
    return TrainingRows(arguments, data_facts.describe(arguments)).chosen(count)


def test_the_first_and_the_last_rows_are_chosen_and_the_most_different_targets():
    y = np.zeros(100, "float32")
    y[60:62], y[30:32] = 5, -1
    first, extreme, last = (rows.leaves for rows in chosen({"x": np.arange(100.0), "y": y}, 4))
    assert first["x"].tolist() == [0, 1, 2, 3]
    assert last["x"].tolist() == [96, 97, 98, 99]
    assert extreme["x"].tolist() == [30, 31, 60, 61]


def test_the_most_and_the_least_masked_rows_are_chosen():
    x = np.ones((50, 3), dtype="int32")
    x[20:22] = 0
    batches = [rows.leaves["x"] for rows in chosen({"x": x, "y": np.zeros(50)}, 4)]
    assert any((batch[2:] == 0).all() and (batch[:2] == 1).all() for batch in batches)


def test_rows_with_the_most_different_weights_are_chosen():
    weight = np.ones(100, "float32")
    weight[40:42], weight[70:72] = 9, 0
    batches = chosen({"x": np.arange(100.0), "y": np.zeros(100), "sample_weight": weight}, 4)
    assert [70, 71, 40, 41] in [rows.leaves["x"].tolist() for rows in batches]


def test_rows_for_validation_are_not_chosen():
    batches = chosen({"x": np.arange(100.0), "y": np.zeros(100), "validation_split": 0.5}, 4)
    assert max(rows.leaves["x"].max() for rows in batches) == 49


def test_few_rows_are_chosen_once():
    rows, last = chosen({"x": np.arange(5.0)}, 64)
    assert last.leaves["x"].tolist() == [1, 2, 3, 4]
    assert len(chosen({"x": np.arange(4.0)}, 64)) == 1
    assert rows.leaves["x"].tolist() == [0, 1, 2, 3]
    assert [part.leaves["x"].tolist() for part in rows.parts(2)] == [[0, 1], [2, 3]]
    assert chosen({"x": np.arange(1.0)}, 64) == []


def test_a_fit_of_one_micro_step_has_no_other_arguments_of_the_script():
    x = np.arange(8.0)
    given = {"x": x, "y": x, "batch_size": 4, "epochs": 9, "validation_split": 0.5, "class_weight": {0: 2.0}}
    arguments = one_batch_arguments(given, chosen(given, 2)[0])
    assert arguments.pop("x").tolist() == [0, 1]
    assert arguments.pop("y").tolist() == [0, 1]
    assert arguments == {
        "batch_size": 2,
        "class_weight": {0: 2.0},
        "epochs": 1,
        "steps_per_epoch": 1,
        "shuffle": False,
        "verbose": 0,
    }


class Buckets(keras.utils.PyDataset):
    """Batches of sequences that differ in length."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full((4, 2 + index), index), np.zeros(4)


def test_batches_of_other_shapes_are_not_joined():
    batches = chosen({"x": Buckets()}, 4)
    assert [rows.leaves[0].shape for rows in batches] == [(4, 2), (4, 3), (4, 4)]


def test_a_large_model_is_compared_on_few_rows():
    def model(width):
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(width), keras.layers.Dense(1)])

    assert affordable_rows(model(4), {"x": np.zeros((10, 8))}) > 1000
    long = np.zeros((10, 10_000), dtype="int32")
    assert affordable_rows(model(4000), {"x": long}) == 83
    assert affordable_rows(model(4000), {"x": np.zeros((10, 10**6), dtype="int32")}) == 4


def test_masked_steps_of_float_inputs_are_chosen_whatever_their_value_is():
    x = np.random.default_rng(0).standard_normal((200, 6, 2)).astype("float32")
    x[150:152, 2:] = -1.0
    batches = [rows.leaves["x"] for rows in chosen({"x": x, "y": np.zeros(200)}, 4)]
    assert any((batch[2:, 2:] == -1).all() and (batch[:2, 2:] != -1).all() for batch in batches)


def batches_of(count):
    """Yield batches of which the 40th is masked."""
    for at in range(count):
        yield np.full((4, 3), 0 if at == 40 else 1), np.zeros(4)


@pytest.mark.parametrize("count", [60, None])
def test_cheap_batches_are_read_beyond_the_first(count):
    """Endless data are read for a limited time."""
    data = batches_of(count) if count else (batch for _ in itertools.count() for batch in batches_of(60))
    facts = data_facts.DataFacts("generator", None, 4, None, explicit_steps=False, exact=False)
    batches = [rows.leaves[0] for rows in TrainingRows({"x": data}, facts).chosen(4)]
    assert any((batch[2:] == 0).all() and (batch[:2] == 1).all() for batch in batches)
