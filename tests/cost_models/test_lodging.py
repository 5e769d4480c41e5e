"""Which temporaries lie where something else will be."""

import numpy as np

from cost_models.lodging import lodged


def found(sizes, lives, rooms):
    birth, death = np.array(lives).T
    return lodged(np.array(sizes, np.float64), birth, death, rooms).tolist()


def test_what_fits_and_is_gone_before_the_room_is_filled_lies_in_it():
    assert found([10], [(0, 3)], [(10, 4)]) == [True]
    assert found([10], [(0, 4)], [(10, 4)]) == [False]
    assert found([11], [(0, 3)], [(10, 4)]) == [False]
    assert found([10], [(0, 3)], []) == [False]


def test_one_at_a_time_and_the_largest_first():
    assert found([5, 8, 8], [(0, 3), (2, 5), (6, 7)], [(10, 9)]) == [False, True, True]


def test_the_smallest_room_that_holds_it_is_taken():
    assert found([6, 4], [(0, 3), (0, 3)], [(10, 9), (4, 9)]) == [True, True]
