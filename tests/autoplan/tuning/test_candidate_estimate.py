from __future__ import annotations

import pytest

from autoplan.tuning.candidate_estimate import CandidateEstimate
from tests.builders.estimates import candidate, estimate
from tests.builders.observations import GIB, config


def test_the_figures_are_those_of_the_analytic_estimate():
    analytic = estimate(config(64, 2), update_seconds=3.0, needed=7, least=5, capacity=10, headroom=0.2)
    found = CandidateEstimate.of(analytic, 100)
    assert (found.update_seconds, found.needed_bytes, found.least_bytes) == (3.0, 7, 5)
    assert (found.capacity_bytes, found.headroom, found.usable_bytes) == (10, 0.2, 8)
    assert (found.config, found.samples, found.analytic) == (config(64, 2), 100, analytic)


def test_what_the_process_holds_besides_is_needed_too():
    found = candidate(config(), needed=7, least=5, capacity=10, outside_bytes=4)
    assert (found.least_bytes, found.needed_bytes, found.outside_bytes) == (9, 11, 4)
    assert (found.fits, found.may_fit) == (False, True)


@pytest.mark.parametrize(("needed", "fits"), [(9 * GIB, True), (9 * GIB + 1, False)])
def test_what_fits_is_at_most_capacity_less_headroom(needed, fits):
    assert candidate(config(), needed=needed, capacity=10 * GIB, headroom=0.1).fits is fits


def test_seconds_a_sample_count_a_partial_batch_as_a_whole_micro_step():
    update_seconds, global_size, accumulation = 6.0, 10, 3
    one = candidate(config(global_size, accumulation), update_seconds=update_seconds)
    assert one.seconds_per_sample == pytest.approx(update_seconds / (global_size * accumulation))
    one = candidate(config(global_size, accumulation), update_seconds=update_seconds, samples=95)
    assert one.seconds_per_sample == pytest.approx(10 * (update_seconds / accumulation) / 95)
