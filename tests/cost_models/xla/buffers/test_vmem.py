"""Values on the chip: room for all of a life, and a short life."""

import numpy as np

from cost_models.xla.buffers.vmem import vmem


def placed(values, moved, room=100):
    """values: (bytes, first kernel, last kernel) each."""
    sizes, birth, death = (np.array(column) for column in zip(*values, strict=True))
    return vmem(sizes.astype(float), birth, death, np.array(moved, float), room).tolist()


def test_a_value_that_is_read_next_stays_on_the_chip():
    assert placed([(50, 0, 1)], [50, 100]) == [True]


def test_alone_a_value_may_fill_the_room_and_beside_another_a_fifth_stays_free():
    assert placed([(100, 0, 1)], [100, 100]) == [True]
    assert placed([(61, 0, 1), (20, 0, 1)], [100, 100]) == [True, False]


def test_what_is_larger_than_the_room_does_not():
    assert placed([(101, 0, 1)], [101, 200]) == [False]


def test_what_lives_long_does_not():
    """Thirty times its own bytes may be moved meanwhile."""
    assert placed([(10, 0, 2)], [10, 300, 10]) == [True]
    assert placed([(10, 0, 2)], [10, 301, 10]) == [False]


def test_values_that_live_at_once_share_the_room_and_the_largest_comes_first():
    assert placed([(30, 0, 2), (60, 1, 2)], [60, 60, 60]) == [False, True]
    assert placed([(20, 0, 2), (60, 1, 2)], [60, 60, 60]) == [True, True]
    assert placed([(60, 0, 1), (60, 2, 3)], [60, 60, 60, 60]) == [True, True]
