"""Sets of gradients under accumulation."""

import pytest

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

N, LAYERS = 2048, 3


@pytest.mark.parametrize(("kind", "sets", "beside"), [("gpu", 1, 1), ("cpu", 2, 0)])
def test_updates_that_choose_have_averages_of_all_gradients_beside_them(kind, sets, beside):
    """Keras averages all gradients before it chooses; XLA:CPU copies the sums so far as well."""
    step = Step()
    weights, x = [step.weight(f"w{i}", N, N) for i in range(LAYERS)], step.input(B, N)
    step.phase = Phase.BACKWARD
    gradients = [step.dot(x, x, (N, N), N, B, N) for _ in weights]
    step.phase = Phase.UPDATE
    for weight, gradient in zip(weights, gradients, strict=True):
        step.new_value(weight, step.op(Kind.ELEMENTWISE, (weight, gradient), (N, N), primitive="sub"))
    workload, profile = step.workload(), compiler_profile(kind)
    one = 4 * N * N
    assert schedule(workload, profile, Updates.SELECTED).peak(8)[0] == (LAYERS + LAYERS * sets) * one
    # Without the rule: all gradients, and on GPUs a new weight beside them.
    without = profile.without("gradient-averages")
    assert schedule(workload, without, Updates.SELECTED).peak(8)[0] == (LAYERS + beside) * one
    assert schedule(workload, profile, Updates.TOGETHER).peak(8)[0] == LAYERS * one
