"""Heaps of a few buffers, whose best arrangement is found on paper."""

import numpy as np
import pytest

from cost_models.xla.buffers.heap import heap_packing


def packed(*buffers):
    """(bytes, first kernel, last kernel) a buffer."""
    sizes, birth, death = zip(*buffers, strict=True)
    return heap_packing(np.array(sizes, float), np.array(birth), np.array(death))


def test_buffers_that_follow_each_other_share_their_place():
    assert packed((100, 0, 1), (100, 2, 3), (100, 4, 5)) == 1.0


def test_buffers_that_live_together_stand_side_by_side():
    assert packed((100, 0, 3), (60, 1, 2), (40, 2, 3)) == 1.0


def test_a_gap_that_is_too_small_is_lost():
    # Alive at once: 8, 3 and 7. By size: both 6 at 0, the 2 at 6, and the 1 meets the 2 and the second 6: it goes to 8.
    # By life: the 2 at 0, the 1 at 2, and the second 6 finds 0 to 2 too small: it ends at 9 as well.
    assert packed((6, 1, 1), (6, 3, 3), (2, 1, 2), (1, 2, 3)) == pytest.approx(9 / 8)


def test_a_gap_that_is_large_enough_is_used():
    # The same with a 2 that ends before the second 6 comes: the 1 lies above it, and the 6 takes 0 to 6.
    assert packed((6, 1, 1), (6, 3, 3), (2, 1, 2), (1, 2, 2)) == 1.0


def test_nothing_to_place_is_no_heap():
    assert heap_packing(np.array([]), np.array([], int), np.array([], int)) == 1.0
