"""How a median and its interval come out of groups of micro-steps."""

import numpy as np
import pytest

from autoplan.runtime.timing.fit_timing import NotFinite, median_interval, require_finite


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


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        ({"loss": np.float32("nan"), "mae": 1.0}, "loss is nan"),
        ({"g_loss": 1.0, "d_loss": float("-inf")}, "d_loss is -inf"),
        ({"mae": float("inf")}, "mae is inf"),
        ({"parts": {"kl_loss": float("nan")}, "mae": 1.0}, "kl_loss is nan"),
    ],
)
def test_a_loss_that_is_no_number_ends_a_trial(logs, told):
    with pytest.raises(NotFinite, match=told):
        require_finite(logs)


@pytest.mark.parametrize(
    "logs",
    [
        None,
        {"loss": 0.5, "correlation": float("nan")},
        {"loss": 0.5, "compile_metrics": {"mae": 0.25, "confusion": np.eye(3)}},
        {"confusion": np.eye(3, dtype="int32")},
    ],
)
def test_metrics_beside_a_loss_may_be_anything(logs):
    require_finite(logs)
