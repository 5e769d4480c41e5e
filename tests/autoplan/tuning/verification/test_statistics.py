from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autoplan.plan.records import Measurement
from autoplan.tuning.verification.statistics import Timed, speedup, student_t
from tests.builders import plans
from tests.builders.observations import config


def timed(own, group_seconds):
    figures = plans.measurement(size=own.batch.global_size) | {"group_seconds": list(group_seconds)}
    return Timed(own, Measurement.model_validate(figures))


def noisy_pairs(ratio, *, pairs, spread, process_spread=0.0, seed=0):
    """Pairs of true speed-up `ratio`; groups vary by `spread`, whole processes by `process_spread` (log scale)."""
    generator = np.random.default_rng(seed)

    def run(seconds):
        process = math.exp(process_spread * generator.standard_normal())
        return seconds * process * np.exp(spread * generator.standard_normal(8))

    return [(timed(config(64), run(ratio)), timed(config(32, 2), run(0.5))) for _ in range(pairs)]


def test_the_speed_up_is_a_ratio_of_seconds_a_sample():
    seconds_a_micro_step, batch = 4.0, 64
    pair = timed(config(batch), [seconds_a_micro_step] * 8), timed(config(batch // 4, 4), [0.25] * 8)
    shown = speedup([pair] * 3)
    expected = (seconds_a_micro_step / batch) / (0.25 / (batch // 4))
    assert (shown.median, shown.low, shown.high, shown.pairs) == (expected, expected, expected, 3)
    assert shown.faster


def test_the_median_is_over_pairs():
    pairs = [(timed(config(1), [base]), timed(config(1), [1.0])) for base in (2.0, 3.0, 100.0)]
    assert speedup(pairs).median == 3.0


def test_a_clear_gain_is_shown():
    shown = speedup(noisy_pairs(1.5, pairs=3, spread=0.05, process_spread=0.03))
    assert shown.faster
    assert shown.low < 1.5 < shown.high


def test_a_pair_that_disagrees_leaves_it_open():
    fast, slow = noisy_pairs(1.3, pairs=2, spread=0.02), noisy_pairs(0.8, pairs=1, spread=0.02)
    shown = speedup(fast + slow)
    assert shown.median > 1.2
    assert shown.low < 1.0
    assert not shown.faster


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_equal_configurations_are_called_faster_no_more_often_than_the_interval_allows(pairs):
    # One-sided 2.5% of 400 repetitions are 10; 20 would be 3 standard deviations above.
    found = sum(
        speedup(noisy_pairs(1.0, pairs=pairs, spread=0.1, process_spread=0.1, seed=n), resamples=200).faster
        for n in range(400)
    )
    assert found <= 20


@pytest.mark.parametrize(
    ("ratio", "spread", "clear"),
    [(3.8, 0.02, True), (1 / 3.8, 0.02, True), (1.4, 0.0, False), (3.8, 0.3, False)],
)
def test_two_pairs_are_clear_where_the_difference_is_large_and_the_noise_small(ratio, spread, clear):
    first, second = (ratio * math.exp(spread * sign) for sign in (-1, 1))
    pairs = [(timed(config(1), [one] * 8), timed(config(1), [1.0] * 8)) for one in (first, second)]
    assert speedup(pairs).clear is clear


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_a_look_after_two_pairs_calls_few_equal_configurations_faster(noise):
    """Two pairs decide by the interval of their processes and by a ratio of 1.5."""
    pairs = (noisy_pairs(1.0, pairs=2, spread=0.01, process_spread=noise, seed=n) for n in range(400))
    assert sum((shown := speedup(one, resamples=50)).clear and shown.faster for one in pairs) <= 4


def test_the_interval_of_two_pairs_is_welchs_over_their_processes():
    """SciPy's interval of the difference of means, of four processes of one group."""
    base, winner = [2.0, 2.2], [1.0, 1.3]
    pairs = [(timed(config(1), [one]), timed(config(1), [other])) for one, other in zip(base, winner, strict=True)]
    found = stats.ttest_ind(np.log(base), np.log(winner), equal_var=False).confidence_interval(0.95)
    shown = speedup(pairs)
    assert (shown.low, shown.high) == (pytest.approx(math.exp(found.low)), pytest.approx(math.exp(found.high)))


def test_the_interval_of_equal_groups_is_students_t_over_the_pairs():
    ratios = (1.2, 1.3, 1.5)
    pairs = [(timed(config(1), [ratio] * 8), timed(config(1), [1.0] * 8)) for ratio in ratios]
    logs = np.log(ratios)
    half = 4.3026527 * np.std(logs, ddof=1) / math.sqrt(3)
    shown = speedup(pairs)
    assert shown.low == pytest.approx(math.exp(np.mean(logs) - half))
    assert shown.high == pytest.approx(math.exp(np.mean(logs) + half))


def test_the_interval_is_the_same_each_time():
    pairs = noisy_pairs(1.2, pairs=3, spread=0.1)
    assert speedup(pairs) == speedup(pairs)


def test_no_pairs_is_an_error():
    with pytest.raises(ValueError, match="at least one pair"):
        speedup([])


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)])
def test_quantiles_of_students_t_are_those_of_printed_tables(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, abs=5e-4)
