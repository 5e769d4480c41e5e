from __future__ import annotations

import pytest

from autoplan.plan.records import FailureKind
from autoplan.tuning.oom_rescue.search import (
    MOST_TRIALS,
    Need,
    RescueSearch,
    cannot_run,
    needs,
)
from tests.builders.observations import config
from tests.builders.trial_outcomes import estimates, failed, ran

OWN = config(64)
BF16 = {"precision": "mixed_bfloat16"}
REMAT = {"remat": {"mode": "activations"}}
MESH = {"mesh": {"data": 2, "model": 1}}
ACCUMULATIONS = [config(64 // a, a) for a in (2, 4, 8, 16, 32, 64)]


def climb(search, runs, *, kind=FailureKind.OOM):
    """Climb where `runs(config)` says what runs; returns what was tried."""
    tried = []
    while (one := search.next()) is not None:
        assert one not in tried, "nothing is tried twice"
        tried.append(one)
        search.add(ran(one) if runs(one) else failed(one, kind))
    return tried


def search_of(gib_by_config, **more):
    known = estimates(gib_by_config, **more)
    return RescueSearch(OWN, known, needs(OWN, known, known))


def split(*, state=0.1, sample=0.02, accumulators=0.02, **changes):
    """Needs of the splits of an effective batch of 64 in GiB: state, and so much a sample."""
    return {
        config(64 // a, a, **changes): state + sample * (64 // a) + (accumulators if a > 1 else 0)
        for a in (1, 2, 4, 8, 16, 32, 64)
    }


# What is known of needs


def test_needs_are_shares_of_the_capacity():
    known = estimates({OWN: 3.0, config(32, 2): 1.5}, capacity=2.0, headroom=0.25, low=0.5)
    assert needs(OWN, known, known) == {OWN: Need(0.75, 1.5, 0.75), config(32, 2): Need(0.375, 0.75, 0.75)}


def test_without_estimates_needs_go_by_the_micro_batch_and_its_width():
    every = [config(32, 2), config(64, **BF16), config(16, 4, **BF16), config(64, **MESH)]
    found = needs(OWN, every, {})
    assert [found[one].high for one in every] == [0.5, 0.5, 0.125, 0.5]
    assert all(need.fits and need.low == 0 for need in found.values())


def test_a_rematerialized_one_without_an_estimate_goes_by_its_plain_twin():
    known = estimates({OWN: 1.0, config(32, 2): 0.5})
    found = needs(OWN, [config(32, 2), config(32, 2, **REMAT), config(16, 4)], known)
    assert found[config(32, 2, **REMAT)].high < found[config(32, 2)].high
    assert config(16, 4) not in found, "it could not be traced"


def test_what_needs_no_less_than_a_failure_cannot_run():
    found = needs(OWN, known := estimates({OWN: 1.0, config(64, **BF16): 1.2, config(64, **REMAT): 1.6}), known)
    assert cannot_run(OWN, OWN, found)
    assert not cannot_run(config(64, **BF16), OWN, found), "estimates of another structure rank less well"
    assert cannot_run(config(64, **REMAT), OWN, found)
    assert not cannot_run(config(8), OWN, found)


# The climb


@pytest.mark.parametrize("least", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.3, 2.5])
def test_the_least_accumulation_is_found_in_few_trials_however_wrong_the_scale_of_estimates(least, scale):
    """The truth is that accumulation `least` runs and less does not; estimates are off by a factor."""
    truth = split()
    limit = truth[config(64 // least, least)] * 1.001
    search = search_of({one: gib / limit * scale for one, gib in truth.items()}, low=0.4)
    tried = climb(search, lambda one: truth[one] <= limit)
    assert search.least == config(64 // least, least)
    assert len(tried) <= MOST_TRIALS


def test_good_estimates_need_two_trials():
    """The one that is estimated to fit runs, and the next smaller change, of which that is not sure, does not."""
    search = search_of({OWN: 1.9, config(32, 2): 1.05, config(16, 4): 0.6, config(8, 8): 0.4}, headroom=0.08)
    assert climb(search, lambda one: one.batch.global_size <= 16) == [config(16, 4), config(32, 2)]
    assert search.least == config(16, 4)


def test_what_is_estimated_to_need_more_than_there_is_is_not_tried():
    search = search_of({OWN: 4.0, config(32, 2): 2.0, config(16, 4): 0.9})
    assert climb(search, lambda one: True) == [config(16, 4)]
    assert search.why_not(config(32, 2)) == "estimated to need more memory than there is"


def test_what_is_estimated_to_need_no_less_than_the_baseline_is_not_tried():
    search = search_of({OWN: 0.8, config(32, 2): 0.85, config(64, **BF16): 0.5})
    assert climb(search, lambda one: True) == [config(64, **BF16)]
    told = "estimated to need no less than the baseline, which ran out of memory"
    assert search.why_not(config(32, 2)) == told


def test_precision_is_next_where_accumulation_is_not_enough():
    """The state is too large for what activations leave, whatever the batch; half the width is enough."""
    needed = split(state=1.05, sample=0.001) | {config(64, **BF16): 0.9, config(64, **REMAT): 1.0}
    search = search_of(needed, low=0.5)
    tried = climb(search, lambda one: one.precision.value == "mixed_bfloat16")
    assert search.least == config(64, **BF16)
    assert len(tried) <= MOST_TRIALS


def test_two_changes_are_the_answer_where_no_single_one_is_enough():
    needed = {OWN: 3.0, config(32, 2): 2.0, config(64, **BF16): 1.9, config(32, 2, **BF16): 0.9}
    search = search_of(needed)
    assert climb(search, lambda one: one == config(32, 2, **BF16)) == [config(32, 2, **BF16)]
    assert search.least == config(32, 2, **BF16)


def test_where_nothing_runs_the_least_need_is_tried_and_that_is_the_end():
    search = search_of(split() | split(sample=0.01, **BF16), low=0.5)
    tried = climb(search, lambda one: False)
    assert search.least is None
    assert len(tried) <= MOST_TRIALS
    assert config(1, 64, **BF16) in tried


def test_a_failure_of_another_kind_says_nothing_of_memory():
    search = search_of({OWN: 1.5, config(64, **BF16): 0.7, config(64, precision="mixed_float16"): 0.7})
    tried = []
    while (one := search.next()) is not None:
        tried.append(one)
        runs = one.precision.value == "mixed_float16"
        search.add(ran(one) if runs else failed(one, FailureKind.UNSUPPORTED))
    assert tried == [config(64, **BF16), config(64, precision="mixed_float16")]
    assert search.least == config(64, precision="mixed_float16")


@pytest.mark.parametrize("least", [2, 4, 8, 16, 32, 64])
def test_without_estimates_the_least_accumulation_is_found_by_batch(least):
    search = RescueSearch(OWN, ACCUMULATIONS, needs(OWN, ACCUMULATIONS, {}))
    tried = climb(search, lambda one: one.batch.global_size <= 64 // least)
    assert search.least == config(64 // least, least)
    assert len(tried) <= MOST_TRIALS


def test_another_training_is_tried_last():
    every = [config(32), config(16), config(32, 2)]
    search = RescueSearch(OWN, every, needs(OWN, every, {}))
    assert climb(search, lambda one: one.batch.global_size <= 16) == [config(32, 2), config(16)]
    assert search.least == config(16)


def test_a_baseline_that_is_not_legal_is_compared_with_all_the_same():
    """Pins may rule it out: then every change holds the pinned one."""
    pinned = [config(64, **BF16), config(32, 2, **BF16)]
    search = RescueSearch(OWN, pinned, needs(OWN, pinned, {}))
    climb(search, lambda one: one.batch.global_size <= 32)
    assert search.least == config(32, 2, **BF16)
