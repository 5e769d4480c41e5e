"""Groups of calls: growth, warm-up and completion without a clock, and the interval of their median."""

import numpy as np
import pytest

from autoplan.runtime.timing.timed_groups import TimedGroups, median_interval


def series(**limits):
    return TimedGroups(**({"groups": 4, "group_seconds": 1.0, "max_seconds": 1e9} | limits))


def run(one, seconds_per_call, most=100):
    """Add groups of calls of this duration; return the number of groups until the series is complete."""
    for taken in range(most):
        if one.is_complete:
            return taken
        one.add(seconds_per_call * one.calls_per_group, one.calls_per_group)
    raise AssertionError("never enough")


def test_groups_grow_to_their_target_and_count_once_two_agree():
    one = series()
    run(one, 0.001)
    assert one.calls_per_group * 0.001 == pytest.approx(1.0, rel=0.1)
    assert one.group_seconds == pytest.approx([0.001] * 4)
    assert len(one.warm_up) == 2
    assert one.micro_steps == 4 * one.calls_per_group


def test_a_slow_call_is_a_group_by_itself():
    one = series()
    assert run(one, 5.0) == 5
    assert one.calls_per_group == 1


def test_a_group_that_stalls_ends_after_twice_its_target_and_the_next_has_fewer_calls():
    one = series()
    while one.calls_per_group < 500:
        one.add(0.001 * one.calls_per_group, one.calls_per_group)
    assert not one.is_overdue(1.9)
    assert one.is_overdue(2.1)
    one.add(10.0, 2, 2)  # the second of many calls waited for its data
    assert one.calls_per_group == 1
    assert one.warm_up == [5.0]


def test_groups_shrink_where_calls_get_slower():
    one = series()
    while one.calls_per_group < 900:
        one.add(0.001 * one.calls_per_group, one.calls_per_group)
    calls = one.calls_per_group
    one.add(4.0, calls)
    assert one.calls_per_group == calls // 4


def test_groups_that_never_agree_count_after_four_warm_up_groups():
    one = series()
    for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0):
        assert not one.is_complete
        one.add(seconds, 1)
    assert one.warm_up == [1.0, 2.0, 4.0, 8.0]
    assert one.is_complete


def test_after_max_seconds_three_groups_suffice():
    one = series(max_seconds=0.0, groups=8)
    run(one, 1.0)
    assert len(one.group_seconds) == 3


def test_the_median_of_groups_lies_in_its_interval():
    values = [1.0, 1.1, 0.9, 1.2, 1.0, 5.0, 1.05, 0.95]
    median, low, high = median_interval(values)
    assert median == pytest.approx(np.median(values))
    assert min(values) <= low <= median <= high < 5.0


def test_one_group_and_equal_groups_have_an_interval_of_width_zero():
    assert median_interval([2.0]) == (2.0, 2.0, 2.0)
    assert median_interval([3.0] * 8) == (3.0, 3.0, 3.0)


def test_intervals_cover_the_true_median_of_correlated_noise():
    """Another process may slow several consecutive groups: intervals must cover the median under correlated noise."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        noise = rng.standard_normal(13)
        values = 10 + noise[1:] + 0.5 * noise[:-1]
        _, low, high = median_interval(list(values), draws=400)
        covered += low <= 10 <= high
    assert covered >= 160
