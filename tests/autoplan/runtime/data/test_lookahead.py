"""Looking ahead at data loses no batch and does not change random numbers."""

import gc
import itertools
import random

import keras
import numpy as np
import pytest

from autoplan.runtime.data import batch_shapes, lookahead, nested_arrays

X, Y = np.zeros((20, 3), "float32"), np.zeros((20, 1), "float32")


def counted(batches=4):
    for number in range(batches):
        yield X + number, Y


def numbers(x):
    return [int(batch[0][0, 0]) for batch in x]


def test_a_generator_with_a_buffered_batch_yields_every_batch_once():
    arguments = lookahead.buffer_first_batch({"x": counted(), "epochs": 2})
    assert lookahead.buffered_batch(arguments["x"])[0].shape == (20, 3)
    assert arguments["epochs"] == 2
    assert lookahead.buffer_first_batch(arguments) is arguments
    assert numbers(arguments["x"]) == [0, 1, 2, 3]


def test_an_empty_generator_stays_empty():
    arguments = lookahead.buffer_first_batch({"x": counted(0)})
    assert lookahead.buffered_batch(arguments["x"]) is None
    assert numbers(arguments["x"]) == []


def test_other_data_than_generators_are_unchanged():
    arguments = {"x": X, "y": Y}
    assert lookahead.buffer_first_batch(arguments) is arguments
    assert lookahead.buffered_batch(X) is None
    assert lookahead.call_at_end(arguments, pytest.fail) is arguments


def test_a_generator_outlives_the_fit_that_read_some_of_it():
    """A script may pass one generator to several fits; each fit continues after the previous one."""
    own = counted(6)
    for expected in ([0, 1], [2, 3], [4, 5]):
        looked = lookahead.buffer_first_batch({"x": own})["x"]
        assert numbers(itertools.islice(looked, 2)) == expected
        del looked
        gc.collect()


def test_the_callback_runs_at_the_end_of_a_generator():
    ended = []
    arguments = lookahead.call_at_end(lookahead.buffer_first_batch({"x": counted()}), lambda: ended.append(True))
    assert lookahead.buffered_batch(arguments["x"]) is not None
    for _ in range(4):
        next(arguments["x"])
        assert not ended
    assert list(arguments["x"]) == []
    assert ended == [True]


class Random(keras.utils.PyDataset):
    def __init__(self, length=7):
        super().__init__()
        self.length = length

    @property
    def num_batches(self):
        return self.length

    def __getitem__(self, index):
        return [np.random.rand(4, 2), np.full((4, 1), random.random()), np.full(4, index)]


@pytest.mark.parametrize(("length", "places"), [(7, [0, 3, 6]), (2, [0, 1]), (1, [0]), (0, []), (None, [0, 1])])
def test_the_first_middle_and_last_batch_of_a_dataset_are_read(length, places):
    dataset = Random(length)
    looked = lookahead.first_middle_last(dataset, length)
    assert [int(batch[2][0]) for batch in looked] == places
    assert all(type(batch) is tuple for batch in looked)


def test_a_look_draws_no_random_number():
    np.random.seed(1)
    random.seed(1)
    expected = np.random.rand(), random.random()
    np.random.seed(1)
    random.seed(1)
    lookahead.first_middle_last(Random(), 7)
    assert (np.random.rand(), random.random()) == expected


def test_rows_and_density_are_read_off_the_arrays():
    sparse = pytest.importorskip("scipy.sparse")
    assert nested_arrays.row_count(({"a": X}, Y)) == 20
    assert nested_arrays.row_count((None, X)) == 20
    assert nested_arrays.row_count(3.0) == 0
    assert nested_arrays.is_dense(({"a": X}, Y, None))
    assert not nested_arrays.is_dense((sparse.csr_matrix(X), Y))
    assert not nested_arrays.is_dense((X, 1.0))
    assert not nested_arrays.is_dense(())


class Mined(keras.utils.PyDataset):
    """Draws its batches from a generator of its own, and counts them."""

    def __init__(self):
        super().__init__()
        self.rng, self.served = np.random.default_rng(3), []

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.served.append(index)
        return self.rng.normal(size=(4, 2)), np.full((4, 1), len(self.served))


def test_a_look_at_a_data_set_leaves_its_own_state_as_it_was():
    looked, untouched = Mined(), Mined()
    assert len(lookahead.first_middle_last(looked, 9)) == 3
    assert batch_shapes.of_py_dataset(looked, 9, 1.0) is not None
    assert looked.served == []
    np.testing.assert_array_equal(looked[0][0], untouched[0][0])
