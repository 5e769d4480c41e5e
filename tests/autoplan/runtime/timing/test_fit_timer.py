"""Losses that end a trial because they are not finite."""

import numpy as np
import pytest

from autoplan.runtime.timing.fit_timer import NonFiniteLoss, require_finite


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ({"loss": np.float32("nan"), "mae": 1.0}, "loss is nan"),
        ({"g_loss": 1.0, "d_loss": float("-inf")}, "d_loss is -inf"),
        ({"mae": float("inf")}, "mae is inf"),
        ({"parts": {"kl_loss": float("nan")}, "mae": 1.0}, "kl_loss is nan"),
    ],
)
def test_a_loss_that_is_not_finite_is_an_error(logs, message):
    with pytest.raises(NonFiniteLoss, match=message):
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
def test_metrics_beside_a_loss_are_not_checked(logs):
    require_finite(logs)
