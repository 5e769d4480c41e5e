from __future__ import annotations

import pytest

from autoplan.explanation import Rates, contributions, measured_rates
from autoplan.plan import Evidence, Failure, FailureKind, Measurement, TrialRecord
from tests.autoplan import plans
from tests.autoplan.facts import config

OWN = config(32, 8, precision="mixed_bfloat16")
WON = config(256)
MEASURED = Rates(Evidence.MEASURED, {OWN: 6.0, config(256, precision="mixed_bfloat16"): 2.0})
ANALYTIC = Rates(Evidence.ANALYTIC, {OWN: 8.0, config(32, 8): 4.0, config(256, precision="mixed_bfloat16"): 1.0})


def test_each_change_alone_comes_from_the_best_tier_that_knows_it():
    assert contributions(OWN, WON, [MEASURED, ANALYTIC]) == [
        "precision float32 alone: 2.00 times as fast (analytic)",
        "accumulation 1 alone: 3.00 times as fast (measured)",
    ]


def test_a_single_change_explains_itself():
    assert contributions(OWN, config(256, precision="mixed_bfloat16"), [MEASURED, ANALYTIC]) == []


def test_what_no_tier_knows_is_left_out():
    assert contributions(OWN, WON, [MEASURED]) == ["accumulation 1 alone: 3.00 times as fast (measured)"]


def test_rates_are_seconds_a_sample_of_what_was_measured():
    measured = Measurement.model_validate(plans.measurement(0.5, size=32))
    failed = Failure(kind=FailureKind.OOM, message="too large")
    records = [
        TrialRecord(number=0, config=OWN.to_dict(), outcome="measured", measurement=measured),
        TrialRecord(number=1, config=WON.to_dict(), outcome="failed", failure=failed),
    ]
    rates = measured_rates(records)
    assert rates.seconds_per_sample == {OWN: pytest.approx(0.5 / 32)}, "by the samples that micro-steps had"
    assert rates.evidence is Evidence.MEASURED
