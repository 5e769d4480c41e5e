"""What is kept because it is long to compute."""

import pytest

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.passes.float_normalization import float_normalization
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")
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
    workload = float_normalization(before, GPU, 0)
    assert (scaled in written(workload)) is kept
    assert scaled not in written(workload, GPU.without("long-chain-operands"))


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
    last = (2 * GPU.setting("column-reduction", "narrow_blocks") - 1) // blocks
    assert swish in written(workload, batch=last)
    assert swish not in written(workload, batch=last + 1)
    assert swish not in written(workload, GPU.without("gated-products").without("column-reduction"))


def test_in_float32_swish_is_computed_again():
    workload, swish = squeezed("float32")
    assert swish not in written(workload, batch=64)


def joined(side, dtype="float32"):
    """Two arrays of features, joined: their mean and the difference to it, as batch normalisation reads them."""
    step = Step()
    parts = [step.op(Kind.CONV, (step.input(B, side, side, 8, dtype=dtype),), (B, side, side, 8), dtype=dtype)]
    parts.append(step.op(Kind.CONV, (parts[0],), (B, side, side, 8), dtype=dtype))
    both = step.op(Kind.MOVE, parts, (B, side, side, 16), dtype=dtype, primitive="concatenate")
    mean = step.op(Kind.REDUCE, (both,), (16,), dtype=dtype, primitive="reduce_sum")
    centred = step.op(Kind.ELEMENTWISE, (both, mean), (B, side, side, 16), dtype=dtype, primitive="sub")
    return step.workload(step.op(Kind.SORT, (centred,), (B, side, side, 16), dtype=dtype)), both


@pytest.mark.parametrize(("side", "kept"), [(24, True), (32, True), (48, True), (64, False)])
def test_joined_features_are_kept_where_their_channels_are_summed_over_short_rows(side, kept):
    """As XLA did in two DenseNets for an A100, and in one of them for an H100."""
    workload, both = joined(side)
    assert (both in written(workload)) is kept
    assert both not in written(workload, GPU.without("joined-features"))


def test_in_half_precision_channels_come_last_and_nothing_is_a_row():
    workload, both = joined(32, "bfloat16")
    assert both not in written(workload)


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
