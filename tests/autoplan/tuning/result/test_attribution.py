from __future__ import annotations

import pytest

from autoplan.plan.records import Evidence, Failure, FailureKind, Measurement, TrialRecord
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.result.attribution import Rates, contributions, idle_devices, measured_rates, predicted_rates
from autoplan.tuning.space.legal_configs import Space
from tests.builders import plans
from tests.builders.estimates import candidate
from tests.builders.observations import VERSIONS, cluster, config, observation

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


def found(legal, estimates, devices=8):
    """Findings of configurations, with what arithmetic says of some: (seconds, what bounds it, that part)."""
    known = {
        one: candidate(one, update_seconds=seconds * one.batch.accumulation, **time)
        for one, (seconds, time) in estimates.items()
    }
    there = cluster(devices, kind="gpu", local=False)
    return Findings(observation(OWN), there, VERSIONS, Space(OWN, tuple(legal), ()), known, tuple(legal), ())


def on(devices, size=256):
    return config(size, mesh={"data": devices})


def test_idle_devices_are_explained_by_what_more_of_them_take():
    two, eight = on(2), on(8)
    time = {"bound": "communication", "communication_seconds": 0.9}
    facts = found([WON, two, eight], {WON: (1.0, {}), two: (1.5, time), eight: (3.0, {})})
    assert idle_devices(facts, WON, [predicted_rates(facts)]) == (
        "the plan uses 1 of 8 devices: the best configuration on 2 devices (128 samples per device) "
        "takes 1.50 times as long "
        "per sample (analytic). 60% of its time is communication (analytic). A larger batch would reduce this "
        "share: --effective-batch LO..HI allows it"
    )
    freed = found([WON, two, on(2, 512)], {WON: (1.0, {}), two: (1.5, time)})
    assert idle_devices(freed, WON, [predicted_rates(freed)]).endswith("60% of its time is communication (analytic)")
    measured = Rates(Evidence.MEASURED, {WON: 1.0, eight: 0.995, two: 1.002})
    assert (
        "devices (32 samples per device) takes 0.99 times as long per sample, too small a difference to "
        "prefer it (measured)"
    ) in (idle_devices(facts, WON, [measured]))


def test_no_device_is_idle_or_none_can_be_used():
    every = found([on(8)], {})
    assert idle_devices(every, on(8), []) is None
    alone = found([WON], {WON: (1.0, {})})
    assert idle_devices(alone, WON, [predicted_rates(alone)]).startswith(
        "the plan uses 1 of 8 devices: no configuration that may be tried uses more, "
    )
    unknown = found([WON, on(2)], {WON: (1.0, {})})
    told = "the plan uses 1 of 8 devices: no configuration on more devices is known to fit"
    assert idle_devices(unknown, WON, [predicted_rates(unknown)]) == told


def test_rates_are_seconds_a_sample_of_what_was_measured():
    measured = Measurement.model_validate(plans.measurement(0.5, size=32))
    failed = Failure(kind=FailureKind.OOM, message="too large")
    records = [
        TrialRecord(number=0, config=OWN, outcome="measured", measurement=measured),
        TrialRecord(number=1, config=WON, outcome="failed", failure=failed),
    ]
    rates = measured_rates(records)
    assert rates.seconds_per_sample == {OWN: pytest.approx(0.5 / 32)}, "by the samples that micro-steps had"
    assert rates.evidence is Evidence.MEASURED
