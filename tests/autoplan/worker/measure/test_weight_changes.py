"""Changes of variables over a few updates, kept in a file and compared with it."""

import math

import numpy as np
import pytest

from autoplan.worker.measure.weight_changes import (
    LARGEST_DIFFERENCE,
    VariableChange,
    compare,
    moved_seeds,
    save,
    state_norms,
    weight_norm,
)


def changes(kernel=(3.0, 4.0), bias=(0.0,), calls=20.0, seed=0.0):
    return [
        VariableChange("dense/kernel", "weight", np.asarray(kernel)),
        VariableChange("dense/bias", "weight", np.asarray(bias)),
        VariableChange("own/calls", "state", np.asarray(calls)),
        VariableChange("dropout/seed", "seed", np.asarray([0.0, seed])),
    ]


def test_figures_of_one_run():
    own = changes(bias=(12.0,), seed=5.0)
    assert weight_norm(own) == 13.0
    assert state_norms(own) == {"own/calls": 20.0}
    assert moved_seeds(own) == ["dropout/seed"]
    assert moved_seeds(changes()) == []


def compared(ours, theirs, folder):
    save(folder / "changes.npz", theirs)
    return compare(ours, folder / "changes.npz")


def test_a_difference_is_relative_to_the_change_of_the_variable(tmp_path):
    found = compared(changes(kernel=(3.0, 4.5)), changes(), tmp_path)
    kernel, bias, calls = found.variables
    assert kernel.difference == pytest.approx(0.5 / 5.0)
    assert found.weights == pytest.approx(0.5 / 5.0)
    assert (bias.difference, calls.difference) == (0.0, 0.0)
    assert (calls.baseline_change, calls.plan_change) == (20.0, 20.0)


def test_a_change_that_is_negligible_in_the_model_is_compared_with_a_share_of_the_mean_change(tmp_path):
    mean_change = 5.0 / math.sqrt(3)
    found = compared(changes(bias=(2e-9,)), changes(bias=(1e-9,)), tmp_path)
    assert found.variables[1].difference == pytest.approx(1e-9 / (1e-3 * mean_change), rel=1e-3)
    assert found.weights < 1e-9


def test_state_that_only_one_of_both_changes_differs_entirely(tmp_path):
    assert compared(changes(calls=1.0), changes(calls=0.0), tmp_path).variables[2].difference == LARGEST_DIFFERENCE
    assert compared(changes(calls=math.nan), changes(), tmp_path).variables[2].difference == LARGEST_DIFFERENCE


def test_seeds_are_left_out(tmp_path):
    found = compared(changes(seed=80.0), changes(seed=20.0), tmp_path)
    assert [one.path for one in found.variables] == ["dense/kernel", "dense/bias", "own/calls"]


def test_models_with_other_variables_are_not_compared(tmp_path):
    assert compared(changes()[:2], changes(), tmp_path) is None
    assert compared(changes(kernel=(1.0, 2.0, 3.0)), changes(), tmp_path) is None
    assert compared([], [], tmp_path) is None
