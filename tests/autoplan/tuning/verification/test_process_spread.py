"""Intervals that hold for the next process, and not only within one."""

import math

import numpy as np
import pytest

from autoplan.plan.records import Measurement
from autoplan.tuning.verification.process_spread import Spread, restated, spread
from autoplan.tuning.verification.statistics import Timed
from cost_models.config import Batch, TrainConfig
from tests.builders.plans import measurement

ONE, TWO = TrainConfig(batch=Batch(32)), TrainConfig(batch=Batch(64))


def timed(config, micro_step_seconds):
    return Timed(config, Measurement.model_validate(measurement(micro_step_seconds)))


def test_the_spread_is_pooled_over_configurations():
    found = spread([timed(ONE, 1.0), timed(ONE, 1.0 * math.e), timed(TWO, 5.0), timed(TWO, 5.0 * math.e)])
    assert found.freedom == 2
    assert found.deviation == pytest.approx(math.sqrt(0.5))


def test_without_repeats_nothing_is_known():
    assert spread([timed(ONE, 1.0), timed(TWO, 2.0)]) is None
    one = timed(ONE, 1.0).measurement
    assert restated(one, None) is one


def test_an_interval_grows_to_hold_for_other_processes_and_never_shrinks():
    one = timed(ONE, 0.004).measurement
    wide = restated(one, Spread(0.1, 6))
    factor = math.exp(2.4469119 * math.sqrt(2) * 0.1)
    assert wide.micro_step_seconds_low == pytest.approx(0.004 / factor)
    assert wide.micro_step_seconds_high == pytest.approx(0.004 * factor)
    narrow = restated(one, Spread(0.0, 6))
    assert (narrow.micro_step_seconds_low, narrow.micro_step_seconds_high) == (
        one.micro_step_seconds_low,
        one.micro_step_seconds_high,
    )


def test_later_medians_lie_inside_earlier_intervals():
    """Four runs of two configurations each state the spread; a fifth run is inside nine times in ten and more."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        medians = 0.01 * np.exp(0.15 * rng.standard_normal((2, 4)))
        runs = [timed(c, float(m)) for c, row in zip((ONE, TWO), medians, strict=True) for m in row]
        stated = restated(runs[0].measurement, spread(runs))
        later = 0.01 * math.exp(0.15 * rng.standard_normal())
        inside += stated.micro_step_seconds_low <= later <= stated.micro_step_seconds_high
    assert inside >= 360
