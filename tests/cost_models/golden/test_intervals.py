"""Memory intervals of the stored workloads, against the bytes that compilers allocated (studies/memory_vs_compiler).

The study's own tables are read from files; here every interval is computed anew.
"""

from dataclasses import replace
from functools import cache

import pytest

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
    known = [one for one in compiled() if name_of(one.point) in NAMES]
    return [(one.point, *against(one.point, one.must_fit_bytes)) for one in known]


def name_of(point):
    return f"{point.model}-{point.precision}-{point.optimizer}"


@cache
def stored(name, chip, attention):
    """The step as a chip runs it. Traces as on a CPU keep attention's scores in memory, as with attention unfused."""
    return load(name, chip) if attention == "auto" else replace(load(name), attention=attention)


def against(point, compiled_bytes):
    workload = stored(name_of(point), TARGETS[point.target], point.attention)
    cost = program_memory(workload, point.config, point.cluster)
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
