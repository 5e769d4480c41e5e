"""Temporaries in places of state: which fit, in which order, and what is copied for it. Bytes are written out."""

import numpy as np

from cost_models.xla.buffers.buffer_reuse import FreeBuffers, in_free_buffers, until_filled
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import two_layers

CPU = compiler_profile("cpu")
N = 64


def placed(rooms, temporaries, copies=0):
    """rooms: (bytes, opens, closes); temporaries: (bytes, birth, death)."""
    sizes, births, deaths = (np.asarray(column) for column in zip(*temporaries, strict=True))
    room, opens, closes = (np.asarray(column) for column in zip(*rooms, strict=True))
    places = FreeBuffers(np.arange(len(rooms)), opens, closes, copies)
    return in_free_buffers(places, room.astype(np.float64), sizes.astype(np.float64), births, deaths).tolist()


def test_a_place_holds_what_lives_while_it_is_free_and_is_no_larger():
    rooms = [(100, 2, 8)]
    assert placed(rooms, [(100, 2, 8)]) == [True]
    assert placed(rooms, [(101, 2, 8)]) == [False]
    assert placed(rooms, [(100, 1, 8)]) == [False]
    assert placed(rooms, [(100, 2, 9)]) == [False]


def test_one_at_a_time_the_largest_first_and_each_in_the_smallest_place():
    assert placed([(100, 0, 9)], [(50, 0, 4), (80, 3, 9), (70, 0, 2)]) == [False, True, True]
    assert placed([(100, 0, 9), (60, 0, 9)], [(50, 0, 9), (90, 0, 9)]) == [True, True]


def test_a_copy_may_stand_in_the_place_of_a_variable_that_was_copied_before():
    rooms = [(100, 0, 5), (100, 0, 5), (100, 0, 5)]
    assert placed(rooms, [(100, 0, 5)] * 3, copies=3) == [False, True, True]


def test_weights_that_are_read_beside_their_update_are_copied():
    """The first layer's gradient waits for all that reads the weights; the second one's does not wait for d_h."""
    workload, _ = two_layers(N)
    second = next(v.tensor for v in workload.variables if v.path == "second")
    columns = schedule(workload, CPU, Updates.AT_ONCE).temporaries
    copied = columns.tensor[columns.purpose == Purpose.WEIGHT_COPIES.value]
    assert copied.tolist() == [second]


def test_what_is_lent_takes_no_bytes_of_its_own():
    """One of h, y, d_h, two gradients and a copy, each of 16,384 bytes, uses the buffer of the second weight."""
    workload, _ = two_layers(N)
    plan = schedule(workload, CPU, Updates.AT_ONCE)
    assert (plan.sizes(N) == 0).sum() >= 1
    assert plan.sizes(4 * N).max() == 4 * 4 * N * N  # what outgrew the place stands beside it


def in_rooms(sizes, lives, filled):
    """filled: (bytes, kernel) of each room."""
    birth, death = np.array(lives).T
    stored = np.array([size for size, _ in filled], np.float64)
    places = until_filled([(tensor, kernel) for tensor, (_, kernel) in enumerate(filled)])
    return in_free_buffers(places, stored, np.array(sizes, np.float64), birth, death).tolist()


def test_what_fits_and_is_gone_before_a_new_states_room_is_filled_lies_in_it():
    assert in_rooms([10], [(0, 3)], [(10, 4)]) == [True]
    assert in_rooms([10], [(0, 4)], [(10, 4)]) == [False]
    assert in_rooms([11], [(0, 3)], [(10, 4)]) == [False]


def test_one_at_a_time_lies_in_a_room_and_the_largest_first():
    assert in_rooms([5, 8, 8], [(0, 3), (2, 5), (6, 7)], [(10, 9)]) == [False, True, True]


def test_the_smallest_room_that_holds_it_is_taken():
    assert in_rooms([6, 4], [(0, 3), (0, 3)], [(10, 9), (4, 9)]) == [True, True]
