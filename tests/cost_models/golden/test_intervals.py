"""Memory intervals of the stored workloads, against the bytes that compilers allocated (studies/memory_vs_compiler).

The study's own tables are read from files; here every interval is computed anew.
"""

from functools import cache

import pytest

from cost_models import Batch, Precision, TrainConfig
from cost_models.hardware.lookup import cluster
from cost_models.memory import program_memory
from studies.memory_vs_compiler.points import TARGETS
from studies.memory_vs_compiler.truths import compiled
from tests.cost_models.golden.make import NAMES, load

LEAST_INSIDE = 0.9
"""Share of compiled steps inside their interval. The interval is one of 90%, and these are a third of the steps."""
MOST_MAPE, WORST_UNDER = 0.03, -0.1


@cache
def rows():
    """(point, signed error of the total, whether the interval contains the compiled total) of every compiled step."""
    known = [one for one in compiled() if "-".join(one.point.trace) in NAMES]
    return [(one.point, *against(one.point, one.must_fit_bytes)) for one in known]


@cache
def stored(name):
    return load(name)


def against(point, compiled_bytes):
    config = TrainConfig(Batch(point.batch, accumulation=point.accumulation), precision=Precision(point.precision))
    cost = program_memory(stored("-".join(point.trace)), config, cluster(TARGETS[point.target]))
    return cost.total / compiled_bytes - 1, cost.total_low <= compiled_bytes <= cost.total_high


def test_compiled_steps_are_inside_their_intervals():
    outside = [(point, f"{error:+.1%}") for point, error, inside in rows() if not inside]
    assert len(rows()) >= 60
    assert len(outside) <= (1 - LEAST_INSIDE) * len(rows()), outside


@pytest.mark.parametrize("target", ["A100", "H100", "CPU"])
def test_estimates_are_near_what_was_compiled(target):
    errors = [error for point, error, _ in rows() if point.target == target]
    assert sum(map(abs, errors)) / len(errors) <= MOST_MAPE
    assert min(errors) >= WORST_UNDER
