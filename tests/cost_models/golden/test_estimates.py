"""Estimates of stored workloads: no change of a prediction goes unseen. `make.py` beside this file writes them anew."""

import json

import pytest

from tests.cost_models.golden.make import CHIPS, ESTIMATES, NAMES, estimates

STORED = json.loads(ESTIMATES.read_text())
TOLERANCE = 1e-3


def test_every_stored_workload_has_estimates_on_every_chip():
    assert len(NAMES) == 10
    assert STORED.keys() == set(NAMES)
    assert all(chips.keys() == set(CHIPS) for chips in STORED.values())


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", NAMES)
def test_memory_and_time_are_as_stored(name, chip):
    found = estimates(name, chip)
    assert found.keys() == STORED[name][chip].keys()
    for config, stored in STORED[name][chip].items():
        for part in ("memory", "time"):
            assert found[config][part] == approximately(stored[part]), (config, part)


def approximately(stored):
    """Numbers within 0.1%, everything else exactly."""
    if isinstance(stored, dict):
        return {key: approximately(value) for key, value in stored.items()}
    if isinstance(stored, list):
        return [approximately(value) for value in stored]
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return stored
    return pytest.approx(stored, rel=TOLERANCE, abs=0)
