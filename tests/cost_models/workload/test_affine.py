import pytest

from cost_models.errors import WorkloadError
from cost_models.workload.affine import Affine


def test_a_line_goes_through_both_points():
    line = Affine.through(4, 100, 160)
    assert (line.at(4), line.at(8)) == (100, 160)
    assert line == Affine(40, 15)


def test_whole_sizes_stay_whole():
    assert isinstance(Affine.through(3, 30, 60).per_sample, int)
    assert Affine.through(2, 10, 11) == Affine(9, 0.5)


def test_lines_add_subtract_and_scale():
    assert Affine(1, 2) + Affine(10, 20) == Affine(11, 22)
    assert Affine(11, 22) - Affine(10, 20) == Affine(1, 2)
    assert Affine(1, 2) * 3 == Affine(3, 6)
    assert Affine.sum([Affine(1, 2), Affine(3, 4), Affine(5)]) == Affine(9, 6)
    assert Affine.sum([]) == Affine()


def test_plain_values_come_back():
    for line in (Affine(7), Affine(7, 2), Affine(0, 0.5)):
        assert Affine.from_plain(line.to_plain()) == line


@pytest.mark.parametrize("wrong", ["7", None, True, [1, 2, 3], ["a", 1], {"fixed": 1}])
def test_anything_else_is_refused_with_what_was_expected(wrong):
    with pytest.raises(WorkloadError, match="expected a number, or"):
        Affine.from_plain(wrong)
