"""Which devices a collective joins, in every way of writing it, and the mesh axis that these are."""

import pytest

from cost_models.errors import WorkloadError
from cost_models.hlo.replica_groups import Line, groups_of, line_of, line_of_pairs, pairs_of

AXES = {"data": 4, "model": 2}
OF_DATA = ((0, 2, 4, 6), (1, 3, 5, 7))
OF_MODEL = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,2,4,6},{1,3,5,7}}", OF_DATA),
        ("[4,2]<=[8]", OF_MODEL),
        ("[2,4]<=[4,2]T(1,0)", OF_DATA),
        ("mesh['a'=4,'b'=2] {'a'}", OF_DATA),
        ("mesh['a'=4,'b'=2] {'b'}", OF_MODEL),
        ("mesh['a'=4,'b'=1,'c'=2] {'a','b','c'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['a'=8] {'a':(1)4}", OF_DATA),  # the slow part of an axis of eight
        ("mesh['a'=8] {'a':(4)2}", OF_MODEL),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", OF_DATA),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", OF_MODEL),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'a'}", ((0, 1), (2, 3))),
    ],
)
def test_groups_are_read_in_every_form(text, groups):
    assert {frozenset(group) for group in groups_of(text, 8)} == {frozenset(group) for group in groups}


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        (OF_DATA, Line("data", 4, 2)),
        (OF_MODEL, Line("model", 2, 1)),
        (((5, 4), (1, 0), (3, 2), (7, 6)), Line("model", 2, 1)),
        ((tuple(range(8)),), Line("data,model", 8, 1)),
        (((0, 1, 2, 3), (4, 5, 6, 7)), Line("4", 4, 1)),
        (((0, 4), (1, 5), (2, 6), (3, 7)), Line("2", 2, 4)),
    ],
)
def test_the_axis_is_the_one_whose_lines_the_groups_are(groups, line):
    assert line_of(groups, AXES) == line


def test_axes_of_one_device_have_no_part_in_a_name():
    assert line_of((tuple(range(8)),), {"data": 8, "model": 1}) == Line("data", 8, 1)


def test_a_permute_runs_along_the_fewest_axes_that_hold_its_pairs():
    ring = pairs_of("{{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}")
    assert line_of_pairs(ring, AXES) == Line("data", 4, 2)
    assert line_of_pairs(((0, 1), (1, 0)), AXES) == Line("model", 2, 1)
    assert line_of_pairs(((0, 3),), AXES) == Line("data,model", 8, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every other", "has a form that this version cannot read"),
        ("[2,3]<=[8]", "does not add up"),
        ("mesh['a'=8] {'b'}", "'b'.*no axis of mesh"),
        ("mesh['a'=4], device_ids=(0,1,2,9) {'a'}", "do not number 4 devices"),
    ],
)
def test_groups_that_make_no_sense_are_said_to(text, message):
    with pytest.raises(WorkloadError, match=message):
        groups_of(text, 8)
