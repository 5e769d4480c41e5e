"""Temporaries in places of state: which lie there, and for how long a place is free."""

import numpy as np

from cost_models.state_places import in_places, rooms


def in_rooms(sizes, lives, filled):
    """filled: (bytes, kernel) of each room."""
    birth, death = np.array(lives).T
    stored = np.array([size for size, _ in filled], np.float64)
    places = rooms([(tensor, kernel) for tensor, (_, kernel) in enumerate(filled)])
    return in_places(places, stored, np.array(sizes, np.float64), birth, death).tolist()


def test_what_fits_and_is_gone_before_a_new_states_room_is_filled_lies_in_it():
    assert in_rooms([10], [(0, 3)], [(10, 4)]) == [True]
    assert in_rooms([10], [(0, 4)], [(10, 4)]) == [False]
    assert in_rooms([11], [(0, 3)], [(10, 4)]) == [False]


def test_one_at_a_time_lies_in_a_room_and_the_largest_first():
    assert in_rooms([5, 8, 8], [(0, 3), (2, 5), (6, 7)], [(10, 9)]) == [False, True, True]


def test_the_smallest_room_that_holds_it_is_taken():
    assert in_rooms([6, 4], [(0, 3), (0, 3)], [(10, 9), (4, 9)]) == [True, True]
