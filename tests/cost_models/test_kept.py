"""What is kept because it is long to compute."""

from dataclasses import replace

import pytest

from cost_models.fusion import kernels_of
from cost_models.targets import target_of
from cost_models.widening import widened
from cost_models.workload import Kind, Phase
from tests.cost_models.made import B, Step

GPU = target_of("gpu")
SIDE, CHANNELS = 10, 64


def written(workload, target=GPU, batch=8):
    outputs = frozenset(workload.outputs)
    return {write for kernel in kernels_of(workload, workload.ops, outputs, target, batch) for write in kernel.writes}


def gelu(dtype):
    """Exact GELU: erfc of a scaled input, which its gradient squares again."""
    step = Step()
    x = step.op(Kind.SORT, (step.input(B, 256, dtype=dtype),), (B, 256), dtype=dtype)
    scaled = step.op(Kind.ELEMENTWISE, (x,), (B, 256), dtype=dtype, primitive="mul")
    erfc = step.op(Kind.EXPENSIVE, (scaled,), (B, 256), dtype=dtype, primitive="erfc")
    y = step.op(Kind.ELEMENTWISE, (x, erfc), (B, 256), dtype=dtype, primitive="mul")
    made = step.op(Kind.SORT, (y,), (B, 256), dtype=dtype)
    step.phase = Phase.BACKWARD
    square = step.op(Kind.ELEMENTWISE, (scaled, made), (B, 256), dtype=dtype, primitive="mul")
    end = step.op(Kind.SORT, (step.op(Kind.ELEMENTWISE, (square, erfc), (B, 256), dtype=dtype),), (B, 256), dtype=dtype)
    return step.workload(end), scaled


@pytest.mark.parametrize(("dtype", "kept"), [("float16", True), ("float32", False), ("bfloat16", False)])
def test_the_narrow_argument_of_a_long_chain_is_kept_where_arithmetic_is_narrow(dtype, kept):
    """An A100 computes in float16; bfloat16 is float32 there from the start, and nothing is converted up."""
    before, scaled = gelu(dtype)
    workload = widened(before, GPU.narrow, GPU.native)
    assert (scaled in written(workload)) is kept
    assert scaled not in written(workload, replace(GPU, keeps_long_operands=False))


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
    last = (2 * GPU.column_blocks - 1) // blocks
    assert swish in written(workload, batch=last)
    assert swish not in written(workload, batch=last + 1)
    assert swish not in written(workload, replace(GPU, keeps_gated=False, column_blocks=0))


def test_in_float32_swish_is_computed_again():
    workload, swish = squeezed("float32")
    assert swish not in written(workload, batch=64)
