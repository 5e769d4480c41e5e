from __future__ import annotations

import pytest

from autoplan.plan.records import Failure, FailureKind, TrialRecord
from autoplan.tuning.trials.refused_settings import changed, refused_by
from tests.builders.observations import config
from tests.builders.plan_decisions import record

OWN = config(64)
BF16 = {"precision": "mixed_bfloat16"}
REMAT = {"remat": {"mode": "activations"}}
PLAIN = {"jit_compile": False}


def refused(number, own, message="TypeError: float32 only", kind=FailureKind.UNSUPPORTED):
    failure = Failure(kind=kind, message=message)
    return TrialRecord(number=number, config=own, outcome="failed", failure=failure)


def measured(number, own):
    return record(number, own, 0.01)


def under(own):
    """A message of a worker, which names the configuration."""
    return f"train.py failed under {own.describe()}: ValueError: batch {own.batch.local} is not {own.batch.local * 2}"


def test_the_batch_is_a_setting_without_a_value():
    assert changed(OWN, OWN) == frozenset()
    assert (
        changed(config(32, 2, **BF16), OWN)
        == changed(config(16, 4, **BF16), OWN)
        == {
            ("precision", "mixed_bfloat16"),
            ("batch", None),
        }
    )


@pytest.mark.parametrize(
    ("refused_ones", "config_", "ruled_out"),
    [
        ([config(64, **BF16)], config(32, 2, **BF16), True),
        ([config(64, **BF16)], config(64, keep_freed_memory=True, **BF16), True),
        ([config(64, **BF16)], config(32, 2), False),
        ([config(64, **BF16)], config(64, **BF16, **REMAT), False),  # remat may change the operation
        ([config(64, **BF16)], config(64, **BF16, **PLAIN), False),  # another compiler
        ([config(32, 2, **BF16)], config(16, 4, **BF16), True),
        ([config(32, 2, **BF16)], config(64, **BF16), False),  # the batch may be the cause
        ([config(32, 2)], config(16, 4), False),
        ([config(32, 2), config(16, 4)], config(8, 8), True),
        ([config(32, 2), config(16, 4)], config(8, 8, **BF16), True),
        ([config(32, 2), config(16, 4)], config(64, **BF16), False),
        ([config(64, **BF16), config(64, **BF16, **REMAT)], config(64, steps_per_execution=8, **BF16), True),
        ([config(64, **BF16), config(64, **BF16, **REMAT)], config(64, **BF16, **PLAIN), False),
        ([config(64, **BF16), config(64, **BF16, **PLAIN)], config(64, **BF16, **REMAT), True),
        ([config(64, **BF16), config(64, **REMAT)], config(64, **BF16, **REMAT), False),  # nothing in common
    ],
)
def test_refusals_end_the_candidates_that_share_their_settings(refused_ones, config_, ruled_out):
    records = [measured(0, OWN), *(refused(at + 1, one, under(one)) for at, one in enumerate(refused_ones))]
    found = refused_by(config_, OWN, records)
    assert (found is not None) is ruled_out
    assert found is None or found in records


def test_refusals_with_other_messages_have_other_causes():
    records = [refused(1, config(32, 2), "ValueError: one"), refused(2, config(16, 4), "TypeError: another")]
    assert refused_by(config(8, 8), OWN, records) is None


def test_a_setting_that_ran_is_not_ended():
    records = [refused(1, config(64, **BF16)), measured(2, config(32, 2, **BF16))]
    assert refused_by(config(16, 4, **BF16), OWN, records) is None
    records = [refused(1, config(32, 2)), refused(2, config(16, 4)), measured(3, config(8, 8))]
    assert refused_by(config(4, 16), OWN, records) is None


@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.TIMEOUT, FailureKind.CRASH, FailureKind.NAN])
def test_other_failures_are_no_refusals(kind):
    assert refused_by(config(32, 2, **BF16), OWN, [refused(1, config(64, **BF16), kind=kind)]) is None
