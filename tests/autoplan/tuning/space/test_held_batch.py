from __future__ import annotations

import pytest

from autoplan.jobs.messages import SplitProbe
from autoplan.tuning.space.held_batch import why_batch_held
from tests.builders.observations import observation

SUMMED = "the loss is a sum over the rows of a micro-step"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"rebatchable": False, "why_fixed_batch": "the data (Rows) cannot be re-batched"}, "the data (Rows) cannot"),
        ({"ema": True}, "(use_ema)"),
        ({"constraint": "MinMaxNorm of dense/kernel"}, "the constraint MinMaxNorm of dense/kernel at every micro-step"),
        ({"probe": SplitProbe(split="same")}, None),
        ({"probe": SplitProbe(split="differs", split_reason=SUMMED)}, SUMMED),
        ({"probe": SplitProbe(split="not_known", split_reason="two runs differ")}, "two runs differ"),
        ({"probe": SplitProbe(ran=False, split_reason="it took too long")}, None),
    ],
)
def test_a_held_batch_has_one_reason(facts, reason):
    found = why_batch_held(observation(**facts))
    assert found == reason if reason is None else reason in found
