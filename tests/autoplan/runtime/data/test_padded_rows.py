"""Metrics that leave padded rows out; training with padding is in `backends/test_conformance.py`."""

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, padded_rows

X, Y = np.ones((6, 4), "float32"), np.ones((6, 1), "float32")


class Rows(keras.utils.PyDataset):
    def __init__(self, *more):
        super().__init__()
        self.batch = (X, Y, *more)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.batch


@pytest.mark.parametrize(
    ("arguments", "are"),
    [
        ({"x": X, "y": Y}, True),
        ({"x": X, "y": Y, "validation_data": (X, Y)}, True),
        ({"x": Rows()}, True),
        ({"x": X, "y": Y, "class_weight": {0: 1.0, 1: 2.0}}, True),
        ({"x": X, "y": Y, "class_weight": {0: 1.0, 1: 0}}, False),
        ({"x": X, "y": Y, "sample_weight": Y[:, 0]}, False),
        ({"x": Rows(Y[:, 0])}, False),
        ({"x": X, "y": Y, "validation_data": (X, Y, Y[:, 0])}, False),
        ({"x": X, "y": Y, "validation_data": Rows()}, False),
    ],
)
def test_padded_rows_have_the_only_zero_weights_where_the_data_have_none(arguments, are):
    assert padded_rows.have_the_only_zero_weights(arguments, data_facts.describe(arguments)) is are


def of_three_rows(weights):
    """The metrics of two outputs after rows of which the last differs, with these weights."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, {"a": inputs, "b": 2 * inputs})
    model.compile(loss="mse", metrics={"a": ["mae"], "b": ["mse"]}, weighted_metrics={"a": ["mae"]})
    rows, zeros = np.array([[1.0], [3.0], [90.0]], "float32"), np.zeros((3, 1), "float32")
    padded_rows.leave_out(model)
    padded_rows.leave_out(model)  # once is enough
    targets = {"a": zeros, "b": zeros}
    found = model.evaluate(rows, targets, sample_weight=weights, batch_size=3, verbose=0, return_dict=True)
    return model, found


def test_metrics_count_rows_that_have_a_weight():
    _, found = of_three_rows(np.array([3.0, 1.0, 0.0], "float32"))
    assert (found["a_mae"], found["b_mse"]) == (2.0, 20.0)


def test_without_weights_all_rows_count():
    _, found = of_three_rows(None)
    assert found["a_mae"] == pytest.approx(94 / 3)


def test_after_it_is_undone_all_rows_count():
    model, _ = of_three_rows(np.array([3.0, 1.0, 0.0], "float32"))
    padded_rows.restore(model)
    model.test_function = None
    rows, zeros = np.array([[1.0], [3.0], [90.0]], "float32"), np.zeros((3, 1), "float32")
    weights = np.array([3.0, 1.0, 0.0], "float32")
    found = model.evaluate(rows, {"a": zeros, "b": zeros}, sample_weight=weights, verbose=0, return_dict=True)
    assert found["b_mse"] == pytest.approx(4 * (1 + 9 + 8100) / 3)
