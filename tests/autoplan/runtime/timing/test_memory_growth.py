"""Growth of memory over micro-steps: made-up series, and arrays that a process keeps."""

import subprocess
import sys

import numpy as np
import pytest

from autoplan.runtime.timing.memory_growth import MemoryGrowth

MIB = 2**20


def growth_of(sizes):
    growth = MemoryGrowth()
    for step, size in enumerate(sizes):
        growth.add(10 * step, int(size))
    return growth


def noise(count, mib):
    return np.random.default_rng(0).normal(scale=mib * MIB, size=count)


@pytest.mark.parametrize("scatter", [0.0, 2.0])
def test_a_leak_is_measured_through_noise(scatter):
    growth = growth_of(500 * MIB + 20 * MIB * np.arange(60) + noise(60, scatter))
    assert growth.bytes_per_micro_step() == pytest.approx(2 * MIB, rel=0.02)
    assert growth.micro_steps == 590
    assert growth.bytes_after(1000) == pytest.approx(2500 * MIB, rel=0.02)


@pytest.mark.parametrize(
    "sizes",
    [
        500 * MIB + noise(60, 5.0),
        500 * MIB + 20 * MIB * np.minimum(np.arange(60), 20),  # a pool that fills up
        500 * MIB + 100 * MIB * (np.arange(60) > 30),  # one large array
        500 * MIB + 1024 * np.arange(60),  # below the noise of any process
        500 * MIB - 20 * MIB * np.arange(20),
        500 * MIB + 20 * MIB * np.arange(8),  # too few points
    ],
)
def test_no_growth_is_claimed_without_a_steady_rise(sizes):
    growth = growth_of(sizes)
    assert growth.bytes_per_micro_step() is None
    assert growth.bytes_after(1000) is None


def test_long_series_are_thinned_and_keep_their_slope():
    growth = growth_of(500 * MIB + MIB * np.arange(5000))
    assert growth.bytes_per_micro_step() == pytest.approx(MIB / 10)
    assert growth.micro_steps > 49_000


KEEPS = """
import numpy as np
from autoplan.runtime.timing.memory_growth import MemoryGrowth, private_bytes
kept, growth = [], MemoryGrowth()
for step in range(30):
    kept.append(np.ones(2**18))  # 2 MiB each
    growth.add(step, private_bytes())
print(growth.bytes_per_micro_step())
"""


def test_arrays_that_a_process_keeps_are_seen():
    # In a process of its own: in this one, memory that earlier tests have freed may take the arrays.
    finished = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert float(finished.stdout) == pytest.approx(2 * MIB, rel=0.1)
