"""How groups of calls grow, settle and suffice, in figures and without a clock."""

import pytest

from autoplan.runtime.timing.step_times import GroupSeries


def series(**limits):
    return GroupSeries(**({"groups": 4, "group_seconds": 1.0, "max_seconds": 1e9} | limits))


def run(one, seconds_a_call, most=100):
    """Groups of calls that take so long each; returns how many groups it took."""
    for taken in range(most):
        if one.enough:
            return taken
        one.take(seconds_a_call * one.calls_a_group, one.calls_a_group)
    raise AssertionError("never enough")


def test_groups_grow_to_their_length_and_those_that_agree_count():
    one = series()
    run(one, 0.001)
    assert one.calls_a_group * 0.001 == pytest.approx(1.0, rel=0.1)
    assert one.group_seconds == pytest.approx([0.001] * 4)
    assert len(one.warm_up) == 2
    assert one.micro_steps == 4 * one.calls_a_group


def test_a_slow_call_is_a_group_by_itself():
    one = series()
    assert run(one, 5.0) == 5
    assert one.calls_a_group == 1


def test_groups_that_never_agree_count_after_four():
    one = series()
    for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0):
        assert not one.enough
        one.take(seconds, 1)
    assert one.warm_up == [1.0, 2.0, 4.0, 8.0]
    assert one.enough


def test_past_the_time_three_groups_suffice():
    one = series(max_seconds=0.0, groups=8)
    run(one, 1.0)
    assert len(one.group_seconds) == 3
