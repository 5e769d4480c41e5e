from __future__ import annotations

import numpy as np
import pytest

from autoplan.worker.split_probe.updates import TOLERANCES, Update, differences

FLOAT32 = TOLERANCES["float32"]


def update(losses, gradients, *, before=(1.0,), after=(1.0,), dtype="float32"):
    """An update of one weight `w#0` with a gradient for each micro-step, and one other variable `a/state#1`."""
    return Update(
        losses,
        [{"w#0": np.asarray(gradient, dtype="float32")} for gradient in gradients],
        {"a/state#1": np.asarray(before, dtype=dtype)},
        {"a/state#1": np.asarray(after, dtype=dtype)},
        [{} for _ in losses],
    )


def names(whole, other, tolerance=FLOAT32):
    return [one.name for one in differences(whole, other, tolerance)[0]]


def test_the_mean_over_micro_steps_counts():
    whole = update([2.0], [[3.0, 4.0]])
    assert names(whole, update([1.0, 3.0], [[2.0, 4.0], [4.0, 4.0]])) == []
    assert names(whole, update([2.0, 4.0], [[3.0, 4.0], [3.0, 4.0]])) == ["loss"]
    assert names(whole, update([2.0, 2.0], [[3.0, 4.0], [3.0, 8.0]])) == ["w#0"]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES.items())
def test_differences_above_the_tolerance_are_found_and_those_below_are_not(dtype, tolerance):
    whole = update([1.0], [[1.0, 0.0]])
    for factor, found in ((0.9, []), (1.1, ["loss", "w#0"])):
        apart = 1.0 + factor * tolerance
        other = update([apart] * 2, [[apart, 0.0]] * 2)
        assert names(whole, other, TOLERANCES[dtype]) == found


def test_rounding_of_a_small_gradient_is_compared_with_the_largest():
    def of(small):
        gradients = [{"w#0": np.float32([1.0]), "b#1": np.float32([small])}]
        return Update([1.0], gradients, {}, {}, [{}])

    assert differences(of(0.0), of(9e-7), FLOAT32)[0] == []
    assert [one.path for one in differences(of(0.0), of(2e-6), FLOAT32)[0]] == ["b"]


def test_a_loss_that_only_a_part_has_not_is_a_difference():
    found, most = differences(update([1.0], [[1.0]]), update([1.0, float("nan")], [[1.0], [1.0]]), FLOAT32)
    assert [one.name for one in found] == ["loss"]
    assert most == float("inf")


def test_a_model_without_a_loss_is_compared_by_its_gradients():
    assert names(update([None], [[1.0]]), update([None, None], [[1.0], [1.0]])) == []


def test_a_variable_that_counts_micro_steps_is_a_difference():
    whole = update([1.0], [[1.0]], before=[5], after=[6], dtype="int32")
    twice = update([1.0, 1.0], [[1.0], [1.0]], before=[5], after=[7], dtype="int32")
    (found,), _ = differences(whole, twice, FLOAT32)
    assert (found.kind, found.path) == ("variable", "a/state")
    assert found.words == "by 1 in one micro-step and by 2 in two of half the size"
    assert names(whole, update([1.0, 1.0], [[1.0], [1.0]], before=[5], after=[6], dtype="int32")) == []


def test_rounding_of_a_variable_is_none():
    whole = update([1.0], [[1.0]], before=[100.0], after=[100.5])
    assert names(whole, update([1.0] * 2, [[1.0]] * 2, before=[100.0], after=[100.50005])) == []
    assert names(whole, update([1.0] * 2, [[1.0]] * 2, before=[100.0], after=[100.51])) == ["a/state#1"]
