"""Memory that a processor gives back and has paged in again, by hand: 2**25 bytes may stay, what is more goes."""

from dataclasses import replace

import pytest

from cost_models.hardware.efficiency import efficiency_of
from cost_models.memory import memory
from cost_models.time.page_faults import LARGEST_KEPT_BYTES, may_page, paging_seconds, returned_bytes
from cost_models.time.step import step_time
from tests.builders.configs import local_config as config
from tests.builders.workloads import cluster, dense

RATE = 4e9
HERE = cluster("cpu", local=True, fresh_page_bytes_per_second=RATE)
LARGE = 16384
"""Samples: 64 MiB of float32 for each value of 1,024 columns."""


def temporary_bytes(own):
    cost = memory(dense(64, 1024), own, HERE)
    return cost.gradients + cost.weight_copies + cost.activations + cost.workspace


def test_all_temporaries_are_paged_in_again_once_they_are_more_than_the_c_library_keeps():
    step = dense(64, 1024)
    assert temporary_bytes(config(LARGE)) > LARGEST_KEPT_BYTES
    assert returned_bytes(step, config(LARGE), HERE) == temporary_bytes(config(LARGE))
    assert 0 < temporary_bytes(config(1024)) < LARGEST_KEPT_BYTES
    assert returned_bytes(step, config(1024), HERE) == 0


def test_the_seconds_are_the_bytes_over_the_measured_rate_and_stand_under_memory():
    step = dense(64, 1024)
    expected = temporary_bytes(config(LARGE)) / (RATE * efficiency_of(HERE).fresh_page_share)
    assert paging_seconds(step, config(LARGE), HERE) == pytest.approx(expected)
    paged, kept = (step_time(step, config(LARGE, keep_freed_memory=keep), HERE) for keep in (False, True))
    assert paged.memory_seconds - kept.memory_seconds == pytest.approx(expected)
    assert paged.micro_step_seconds - kept.micro_step_seconds == pytest.approx(expected)


@pytest.mark.parametrize("more", [{"keep_freed_memory": True}, {"jit_compile": False}, {"backend": "tensorflow"}])
def test_nothing_goes_back_where_it_is_kept_or_comes_in_small_pieces(more):
    assert returned_bytes(dense(64, 1024), config(**more), HERE) == 0


@pytest.mark.parametrize("there", [cluster("gpu"), cluster("cpu", local=True)])
def test_where_no_rate_was_measured_nothing_is_said(there):
    assert not may_page(config(LARGE), there)
    assert paging_seconds(dense(64, 1024), config(LARGE), there) == 0.0


def test_simulated_devices_share_the_rate():
    from cost_models.hardware.cluster import share

    assert share(HERE, 4).chip.fresh_page_bytes_per_second == RATE / 4
    without = replace(HERE, chip=replace(HERE.chip, fresh_page_bytes_per_second=None))
    assert share(without, 4).chip.fresh_page_bytes_per_second is None
