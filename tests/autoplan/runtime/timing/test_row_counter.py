import numpy as np
import pytest

from autoplan.runtime.timing.row_counter import RowCounter


def batch(rows):
    return np.zeros((rows, 3)), np.zeros(rows)


def test_batches_that_an_iterator_yields_are_counted_when_they_are_read():
    counter = RowCounter()
    state, batches = counter.watched(("state", iter([batch(4), batch(2), batch(9)])))
    assert state == "state"
    next(batches), next(batches)
    assert (counter.batches, counter.rows, counter.mean_rows) == (2, 6, 3)


def test_batches_of_an_execution_on_pytorch_are_counted():
    counter = RowCounter()
    inputs = ([batch(4), batch(3)],)
    assert counter.watched(inputs) is inputs
    assert counter.mean_rows == 3.5


def test_an_iterator_of_tensorflow_stays_as_it_is():
    tf = pytest.importorskip("tensorflow")
    counter, inputs = RowCounter(), (iter(tf.data.Dataset.range(3).batch(2)),)
    assert counter.watched(inputs) is inputs
    assert counter.mean_rows is None
