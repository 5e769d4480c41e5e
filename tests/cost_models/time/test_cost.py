"""Seconds that add, and the figures that follow from them."""

from dataclasses import replace

import numpy as np
import pytest

from cost_models.time.cost import TimeCost, TimeParts, figures

PARTS = TimeParts(3.0, 2.0, 0.5, 0.25)


def cost(parts=PARTS, *, flops=8.0):
    return TimeCost(**figures(parts, accumulation=4, global_batch=23, model_flops=flops, peak_flops_per_second=16.0))


def test_parts_add_and_scale():
    assert PARTS + PARTS == PARTS * 2 == TimeParts(6.0, 4.0, 1.0, 0.5)
    assert PARTS * TimeParts(1.0, 2.0, 3.0, 4.0) == TimeParts(3.0, 4.0, 1.5, 1.0)
    assert (PARTS.seconds, PARTS.bound) == (5.75, "compute")


def test_parts_of_many_configurations_are_arrays():
    many = TimeParts(np.array([1.0, 1.0]), np.array([2.0, 0.5]), 0.0, 0.25)
    assert many.seconds.tolist() == [3.25, 1.75]
    assert many.bound.tolist() == ["memory", "compute"]


def test_the_figures_follow_from_the_parts():
    found = cost()
    assert (found.micro_step_seconds, found.update_seconds) == (5.75, 23.0)
    assert (found.samples_per_second, found.mfu, found.bound) == (4.0, 8.0 / (5.75 * 16.0), "compute")
    assert found.parts == PARTS
    assert cost(flops=None).mfu is None


def test_figures_of_arrays_are_those_of_each():
    many = figures(
        TimeParts(np.array([3.0, 6.0]), np.array([2.0, 4.0]), 0.5, 0.25),
        accumulation=np.array([4, 1]),
        global_batch=np.array([23, 23]),
        model_flops=np.array([8.0, 8.0]),
        peak_flops_per_second=16.0,
    )
    for name, value in cost().to_dict().items():
        if name.startswith(("micro", "update", "samples", "mfu", "bound")):
            assert many[name][0] == value


def test_two_layers_in_turn_take_the_seconds_of_both_and_their_mean_rates():
    whole = cost(PARTS * 3, flops=24.0)
    summed = cost() + cost(PARTS * 2, flops=16.0)
    assert summed.to_dict() == pytest.approx(whole.to_dict())
    assert (cost() * 3).to_dict() == pytest.approx(whole.to_dict())
    assert (cost() + cost(flops=None)).mfu is None


def test_the_same_work_in_other_seconds_changes_its_rates():
    slower = cost().with_parts(PARTS * 2)
    assert (slower.update_seconds, slower.samples_per_second) == (46.0, 2.0)
    assert slower.mfu == pytest.approx(cost().mfu / 2)
    assert replace(slower, mfu=None).with_parts(PARTS).mfu is None


def test_a_cost_is_read_as_it_was_written():
    assert TimeCost.from_dict(cost().to_dict() | {"more": 1}) == cost()
