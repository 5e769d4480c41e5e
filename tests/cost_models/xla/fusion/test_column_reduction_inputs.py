"""What is computed before reductions over columns of float32, as whole nets compiled for an A100 show it."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")


def written(workload, end, batch, target=GPU):
    kernels = kernels_of(workload, workload.ops, frozenset({end}), target, batch)
    return {write for kernel in kernels for write in kernel.writes}


@pytest.mark.parametrize(
    ("rows", "width", "kept"),
    [
        *((512, 1536, False), (1024, 1536, False), (1024, 2304, False), (1536, 1536, True), (1536, 2304, True)),
        *((2048, 1536, True), (2048, 2048, True), (2048, 3072, False), (4096, 1536, False), (4096, 1248, True)),
    ],
)
def test_long_columns_of_float32_that_lie_in_caches_are_computed_before_their_sums(rows, width, kept):
    """Rows of what XLA compiled for an A100: dense layers of these widths with ReLU and normalisation."""
    step = Step()
    y = step.dot(step.input(B, 128), step.weight("kernel", 128, width), (B, width), B, 128, width)
    y = step.op(Kind.ELEMENTWISE, (y, step.weight("bias", width)), (B, width), primitive="add")
    x = step.op(Kind.ELEMENTWISE, (y,), (B, width), primitive="max")
    mean = step.op(Kind.REDUCE, (x,), (width,), primitive="reduce_sum")
    centred = step.op(Kind.ELEMENTWISE, (x, mean), (B, width), primitive="sub")
    square = step.op(Kind.ELEMENTWISE, (centred,), (B, width), primitive="square")
    variance = step.op(Kind.REDUCE, (square,), (width,), primitive="reduce_sum")
    end = step.op(Kind.ELEMENTWISE, (centred, variance), (B, width), primitive="mul")
    workload = step.workload(end, batch=rows)
    assert (centred in written(workload, end, rows)) is kept
    if width > GPU.setting("column-reduction", "wide_blocks") * 32:
        assert centred not in written(workload, end, rows, GPU.without("cached-column-reduction"))


def test_a_bias_is_added_by_the_product_and_makes_no_chain():
    """72 blocks: XLA kept ReLU of a product with its bias, and computed what is centred of such a product again."""
    rows, width = 512, 72 * 32
    step = Step()
    y = step.dot(step.input(B, 128), step.weight("kernel", 128, width), (B, width), B, 128, width)
    y = step.op(Kind.ELEMENTWISE, (y, step.weight("bias", width)), (B, width), primitive="add")
    relu = step.op(Kind.ELEMENTWISE, (y,), (B, width), primitive="max")
    ends = []
    for x in (relu, step.op(Kind.ELEMENTWISE, (y, step.weight("mean", width)), (B, width), primitive="sub")):
        square = step.op(Kind.ELEMENTWISE, (x,), (B, width), primitive="square")
        variance = step.op(Kind.REDUCE, (square,), (width,), primitive="reduce_sum")
        ends.append(step.op(Kind.ELEMENTWISE, (x, variance), (B, width), primitive="mul"))
    workload = step.workload(*ends, batch=rows)
    kernels = kernels_of(workload, workload.ops, frozenset(ends), GPU, rows)
    there = {write for kernel in kernels for write in kernel.writes}
    assert relu in there
    assert x not in there


@pytest.mark.parametrize("multiplied", [False, True])
def test_squeezing_keeps_in_float32_what_nothing_reads_rounded_from_memory(multiplied):
    """Normalised images in float16 that are summed and gated; XLA kept the sum of scaled and shift on an A100."""
    side, width = 28, 64
    image, like = (B, side, side, width), {"dtype": "float16"}
    step = Step()
    y = step.op(Kind.CONV, (step.input(*image, **like), step.weight("kernel", 3, 3, width, width)), image, **like)
    wide = step.op(Kind.ELEMENTWISE, (y,), image, primitive="convert_element_type")
    scaled = step.op(Kind.ELEMENTWISE, (wide, step.weight("scale", width)), image, primitive="mul")
    shifted = step.op(Kind.ELEMENTWISE, (scaled, step.weight("shift", width)), image, primitive="add")
    narrow = step.op(Kind.ELEMENTWISE, (shifted,), image, primitive="convert_element_type", **like)
    squeezed = step.op(Kind.REDUCE, (shifted,), (B, width), primitive="reduce_sum")
    gate = step.op(Kind.ELEMENTWISE, (squeezed,), (B, width), primitive="convert_element_type", **like)
    ends = [step.op(Kind.ELEMENTWISE, (narrow, gate), image, primitive="mul", **like)]
    ends += [step.op(Kind.ELEMENTWISE, (narrow, step.input(*image, **like)), image, primitive="mul", **like)]
    if multiplied:
        kernel = step.weight("next", 3, 3, width, width)
        ends.append(step.op(Kind.CONV, (narrow, kernel), image, **like))
    workload = step.workload(*ends, batch=32)
    kernels = kernels_of(workload, workload.ops, frozenset(ends), GPU, 32)
    there = {write for kernel in kernels for write in kernel.writes}
    assert (shifted in there, narrow in there) == (not multiplied, multiplied)
