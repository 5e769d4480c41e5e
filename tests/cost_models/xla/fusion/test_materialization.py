"""Values that are written because they take long to compute."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")
SIDE, CHANNELS = 10, 64


def written(workload, target=GPU, batch=8):
    outputs = frozenset(workload.outputs)
    return {
        write for kernel in priority_fusion(workload, workload.ops, outputs, target, batch) for write in kernel.writes
    }


def squeezed(dtype="float16"):
    """Swish, its mean over each image, and the product of both: squeeze and excitation."""
    step = Step()
    shape = (B, SIDE, SIDE, CHANNELS)
    x = step.op(Kind.SORT, (step.input(*shape, dtype=dtype),), shape, dtype=dtype)
    gate = step.op(Kind.ELEMENTWISE, (x,), shape, dtype=dtype, primitive="logistic")
    swish = step.op(Kind.ELEMENTWISE, (x, gate), shape, dtype=dtype, primitive="mul")
    mean = step.op(Kind.REDUCE, (swish,), (B, CHANNELS), dtype=dtype, primitive="reduce_sum")
    scaled = step.op(Kind.ELEMENTWISE, (swish, mean), shape, dtype=dtype, primitive="mul")
    return step.workload(step.op(Kind.SORT, (scaled,), shape, dtype=dtype)), swish


def test_swish_is_kept_where_the_sum_of_it_runs_on_few_blocks():
    workload, swish = squeezed()
    blocks = CHANNELS // 32  # of each image; twice 288 are asked for
    last = (2 * GPU.setting("column-reduction", "least").narrow - 1) // blocks
    assert swish in written(workload, batch=last)
    assert swish not in written(workload, batch=last + 1)
    assert swish not in written(workload, GPU.without("gated-products").without("column-reduction"))


def test_in_float32_swish_is_computed_again():
    workload, swish = squeezed("float32")
    assert swish not in written(workload, batch=64)


def pooled(*primitives):
    """An activation that pooling reads, forward and to find its maxima again."""
    step = Step()
    shape = (B, SIDE, SIDE, CHANNELS)
    x = made = step.op(Kind.SORT, (step.input(*shape),), shape)
    for primitive in primitives:
        made = step.op(Kind.ELEMENTWISE, (made, x), shape, primitive=primitive)
    y = step.op(Kind.POOL, (made,), (B, SIDE // 2, SIDE // 2, CHANNELS), primitive="reduce_window_max")
    return step.workload(y, step.op(Kind.POOL, (made,), (B, SIDE // 2, SIDE // 2, CHANNELS))), made


@pytest.mark.parametrize(
    ("primitives", "capability", "kept"),
    [(("expm1", "select_n"), 9.0, True), (("expm1", "select_n"), 8.0, False), (("max",), 9.0, False)],
)
def test_elu_before_pooling_is_kept_on_hopper(primitives, capability, kept):
    """As XLA did in a net of one-dimensional convolutions: on an H100 it wrote elu, on an A100 it did not."""
    workload, made = pooled(*primitives)
    assert (made in written(workload, compiler_profile("gpu", compute_capability=capability))) is kept
