"""How a median and its interval come out of groups of micro-steps."""

import numpy as np
import pytest

from autoplan.runtime.timing import median_interval


def test_the_median_of_groups_lies_in_its_interval():
    values = [1.0, 1.1, 0.9, 1.2, 1.0, 5.0, 1.05, 0.95]
    median, low, high = median_interval(values)
    assert median == pytest.approx(np.median(values))
    assert min(values) <= low <= median <= high < 5.0


def test_one_group_has_no_width_and_equal_groups_have_none_either():
    assert median_interval([2.0]) == (2.0, 2.0, 2.0)
    assert median_interval([3.0] * 8) == (3.0, 3.0, 3.0)


def test_intervals_cover_the_true_median_of_correlated_noise():
    """A slow neighbour slows several groups in a row: intervals must stay honest under such noise."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        noise = rng.standard_normal(13)
        values = 10 + noise[1:] + 0.5 * noise[:-1]
        _, low, high = median_interval(list(values), draws=400)
        covered += low <= 10 <= high
    assert covered >= 160
