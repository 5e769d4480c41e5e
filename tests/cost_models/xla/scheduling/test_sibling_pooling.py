"""Max-pooling of parallel branches in one kernel, as nets of two and three towers compiled for an A100 show it."""

import pytest

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.scheduling.memory_scheduler import orders
from cost_models.xla.scheduling.sibling_pooling import together
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")
SIDE, POOLED, C = 8, 4, 16


def towers(sides=(SIDE, SIDE), activation="max", stacked=False):
    """A convolution, an activation and max-pooling in each tower (stacked: one behind the other), and gradients."""
    step, forward, ends = Step(), [], []
    x = step.input(B, SIDE, SIDE, C)
    for side in sides:
        kernel = step.weight("kernel", 3, 3, C, C)
        y = step.op(Kind.CONV, (x, kernel), (B, side, side, C))
        y = step.op(Kind.ELEMENTWISE, (y,), (B, side, side, C), primitive=activation)
        pooled = step.op(Kind.POOL, (y,), (B, side // 2, side // 2, C))
        forward.append((side, y, pooled))
        x = step.op(Kind.SORT, (pooled,), (B, SIDE, SIDE, C)) if stacked else x
    step.phase = Phase.BACKWARD
    for side, y, pooled in forward:
        gradient = step.op(Kind.SORT, (pooled,), (B, side // 2, side // 2, C))
        scattered = (gradient, y)
        ends.append(step.op(Kind.POOL_GRADIENT, scattered, (B, side, side, C), primitive="select_and_scatter_add"))
    workload = lower(step.workload(*ends), GPU)
    return workload, kernels_of(workload, workload.ops, frozenset(ends), GPU, 8)


def pools(kernels):
    return sorted(len(kernel.writes) for kernel in kernels if kernel.op.kind is Kind.POOL)


@pytest.mark.parametrize("count", [2, 3])
def test_towers_of_one_form_pool_together_and_look_for_positions_together(count):
    workload, kernels = towers(sides=(SIDE,) * count)
    assert pools(kernels) == [1] * count + [5] * count
    assert pools(together(workload, kernels)) == [count, 5 * count]


def test_of_pools_behind_one_another_the_positions_alone_are_found_together():
    workload, kernels = towers(stacked=True)
    assert pools(together(workload, kernels)) == [1, 1, 10]


@pytest.mark.parametrize("options", [{"sides": (SIDE, 2 * SIDE)}, {"activation": "tanh"}])
def test_other_pools_are_kernels_of_their_own(options):
    """Of another size, or without zeros to compare with."""
    workload, kernels = towers(**options)
    assert together(workload, kernels) == list(kernels)


def test_in_every_order_what_they_read_comes_first():
    workload, kernels = towers()
    for order in orders(workload, kernels, GPU, 8):
        there = {*(v.tensor for v in workload.variables), *workload.inputs}
        for kernel in order:
            assert there.issuperset(kernel.reads)
            there.update(kernel.writes)
