"""Rows that a validation computes at once."""

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, validation_facts

X, Y = np.zeros((100, 3), "float32"), np.arange(100.0)
GIVEN = (X[:40], Y[:40])


def found(**arguments):
    arguments = {"x": X, "y": Y, "batch_size": 16, **arguments}
    return validation_facts.of_fit(arguments, data_facts.describe(arguments))


@pytest.mark.parametrize(
    ("arguments", "rows", "fixed"),
    [
        ({"validation_data": GIVEN}, 16, False),
        ({"validation_data": GIVEN, "validation_batch_size": 32}, 32, True),
        ({"validation_data": GIVEN, "validation_batch_size": 4096}, 40, True),
        ({"validation_data": GIVEN, "validation_steps": 2}, 16, True),
        ({"validation_split": 0.25, "validation_batch_size": 20}, 20, True),
    ],
)
def test_rows_of_arrays_are_the_scripts_own_or_follow_its_batch(arguments, rows, fixed):
    one = found(**arguments)
    assert (one.rows, one.fixed, one.settable) == (rows, fixed, True)


def test_a_fit_without_validation_has_no_facts():
    assert found() is None
    assert found(validation_data=(batch for batch in [GIVEN])) is None


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.ones((64, 5), "float32"), np.ones(64)


def test_data_that_come_in_batches_have_rows_of_their_own():
    one = found(validation_data=Rows())
    assert (one.rows, one.samples, one.fixed, one.settable) == (64, 192, True, False)
    assert validation_facts.sample({"validation_data": Rows()}, one)[0].shape == (1, 5)


def test_a_pipeline_is_not_read_for_a_sample():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(25, drop_remainder=True)
    one = found(validation_data=dataset)
    assert (one.rows, one.samples, one.settable) == (25, 100, False)
    assert [leaf.shape for leaf in validation_facts.sample({"validation_data": dataset}, one)] == [(25, 3), (25,)]


def test_the_rows_of_a_split_are_those_after_the_training():
    arguments = {"x": X, "y": Y, "validation_split": 0.25}
    data = validation_facts.validation_arguments(arguments)
    np.testing.assert_array_equal(data["y"], Y[75:])
