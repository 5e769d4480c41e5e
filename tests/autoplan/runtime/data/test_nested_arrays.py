"""Nested batches: rows, padding, leaves."""

from collections import namedtuple

import numpy as np
import pytest
import scipy.sparse

from autoplan.runtime.data.nested_arrays import as_tuple, is_dense, map_leaves, pad_rows, row_count, take_rows

Pair = namedtuple("Pair", "left right")
ROWS = np.arange(6).reshape(3, 2)


@pytest.mark.parametrize("batch", [ROWS, (ROWS, np.zeros(3)), {"a": None, "b": ROWS}, [[ROWS]]])
def test_rows_are_those_of_the_first_array(batch):
    assert row_count(batch) == 3


@pytest.mark.parametrize("batch", [None, (), 5, np.float32(1)])
def test_a_batch_without_an_array_has_no_rows(batch):
    assert row_count(batch) == 0


def test_rows_are_taken_and_padded_with_zeros():
    assert take_rows(ROWS, [2, 0]).tolist() == [[4, 5], [0, 1]]
    padded = pad_rows(ROWS, 2)
    assert padded.dtype == ROWS.dtype
    assert padded.tolist() == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]
    assert pad_rows(ROWS, 0) is ROWS


def test_a_function_is_applied_to_every_leaf_but_none():
    nest = {"a": [1, None], "b": Pair(2, (3,)), "c": None}
    assert map_leaves(lambda leaf: leaf + 1, nest) == {"a": [2, None], "b": Pair(3, (4,)), "c": None}
    assert isinstance(map_leaves(str, nest)["b"], Pair)


def test_a_batch_is_passed_on_as_a_tuple():
    assert as_tuple([ROWS]) == (ROWS,)
    assert as_tuple(ROWS) == (ROWS,)
    assert as_tuple({"x": 1}) == {"x": 1}


def test_dense_batches_have_arrays_alone():
    assert is_dense((ROWS, None))
    assert not is_dense(None)
    assert not is_dense((ROWS, 5))
    assert not is_dense(scipy.sparse.csr_array(ROWS))
