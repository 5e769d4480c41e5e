"""When a reduction over columns leaves a GPU idle, and what that changes."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.column_reduction import leaves_idle
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profile import structure_batch
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")
SIDE, CHANNELS = 7, 256


def normalised(dtype="bfloat16"):
    """Batch normalisation's variance: centred values, summed as squares over batch and space, and read again."""
    step = Step()
    x = step.input(B, SIDE, SIDE, CHANNELS, dtype=dtype)
    shape = (B, SIDE, SIDE, CHANNELS)
    wide = step.op(Kind.ELEMENTWISE, (x,), shape, primitive="convert_element_type")
    mean = step.op(Kind.REDUCE, (wide,), (CHANNELS,), primitive="reduce_sum")
    centred = step.op(Kind.ELEMENTWISE, (wide, mean), shape, primitive="sub")
    square = step.op(Kind.ELEMENTWISE, (centred,), shape, primitive="square")
    variance = step.op(Kind.REDUCE, (square,), (CHANNELS,), primitive="reduce_sum")
    end = step.op(Kind.ELEMENTWISE, (centred, variance), shape, dtype=dtype, primitive="mul")
    return step.workload(end, batch=32), centred, end


def written(workload, end, batch, target=GPU):
    kernels = priority_fusion(workload, workload.ops, frozenset({end}), target, batch)
    return {write for kernel in kernels for write in kernel.writes}


def test_rows_are_split_at_4096_and_then_fill_the_device():
    workload, _, _ = normalised()
    reduction = workload.ops[1]
    last = 4096 // SIDE**2  # 256 channels: 8 blocks; split into about 64 by 64 rows: 512
    assert leaves_idle(workload, reduction, GPU, last)
    assert not leaves_idle(workload, reduction, GPU, last + 1)
    assert not leaves_idle(workload, reduction, TPU, last)


def test_reductions_over_rows_are_no_matter():
    step = Step()
    x = step.input(B, SIDE, CHANNELS)
    step.op(Kind.REDUCE, (x,), (B, SIDE), primitive="reduce_sum")
    everything = step.op(Kind.REDUCE, (x,), (), primitive="reduce_sum")
    workload = step.workload(everything)
    assert not any(leaves_idle(workload, op, GPU, 8) for op in workload.ops)


def test_what_such_a_reduction_would_compute_of_narrow_values_is_kept():
    workload, centred, end = normalised()
    assert centred in written(workload, end, batch=32)
    assert centred not in written(workload, end, batch=512)


def test_of_float32_it_is_kept_where_fewer_blocks_run():
    """Two blocks of 32 columns leave even float32 arithmetic waiting; 3,136 rows are not split, 6,272 are."""
    workload, centred, end = normalised("float32")
    assert centred in written(workload, end, batch=64)
    assert centred not in written(workload, end, batch=128)


def test_in_float32_images_of_convolutions_have_their_channels_first_and_no_columns():
    step = Step()
    x = step.input(B, SIDE, SIDE, CHANNELS)
    image = step.op(Kind.CONV, (x, step.weight("kernel", 1, 1, CHANNELS, CHANNELS)), (B, SIDE, SIDE, CHANNELS))
    total = step.op(Kind.REDUCE, (image,), (CHANNELS,), primitive="reduce_sum")
    workload = step.workload(total, batch=32)
    assert not leaves_idle(workload, workload.ops[1], GPU, 32)


@pytest.mark.parametrize(("batch", "found"), [(1, 32), (32, 32), (83, 32), (84, 84), (4096, 84)])
def test_kernels_are_found_for_the_nearest_batch_with_the_same_reductions(batch, found):
    workload, _, _ = normalised()
    assert structure_batch(workload, GPU, batch) == found


def test_where_no_reduction_leaves_the_device_idle_one_structure_serves_all():
    workload, _, _ = normalised("float32")
    full = GPU.without("column-reduction").without("cached-column-reduction")
    assert structure_batch(workload, full, 4096) == 32
    narrow, _, _ = normalised()
    assert structure_batch(narrow, GPU.without("column-reduction"), 4096) == 32


GROUPS = 8


def grouped(channels, dtype="float16"):
    """Group normalisation's variance: centred values, summed as squares over space and within groups."""
    step = Step()
    shape = (B, SIDE, SIDE, GROUPS, channels // GROUPS)
    x = step.input(*shape, dtype=dtype)
    wide = step.op(Kind.ELEMENTWISE, (x,), shape, primitive="convert_element_type")
    mean = step.op(Kind.REDUCE, (wide,), (B, GROUPS), primitive="reduce_sum")
    centred = step.op(Kind.ELEMENTWISE, (wide, mean), shape, primitive="sub")
    square = step.op(Kind.ELEMENTWISE, (centred,), shape, primitive="square")
    variance = step.op(Kind.REDUCE, (square,), (B, GROUPS), primitive="reduce_sum")
    end = step.op(Kind.ELEMENTWISE, (centred, variance), shape, dtype=dtype, primitive="mul")
    return step.workload(end, batch=16), centred, end


@pytest.mark.parametrize(
    ("channels", "batch", "kept"),
    [
        *((64, 4, True), (64, 8, True), (64, 16, False), (64, 32, False), (96, 16, False)),
        *((128, 16, True), (128, 32, True), (192, 16, True), (192, 32, False), (256, 16, True), (256, 32, False)),
    ],
)
def test_of_groups_of_narrow_channels_it_is_kept_as_the_compiler_kept_it(channels, batch, kept):
    """Rows of what XLA compiled for an A100 (and for an H100 at a batch of 16): nets of such layers in float16."""
    workload, centred, end = grouped(channels)
    assert (centred in written(workload, end, batch)) is kept
    assert centred not in written(workload, end, batch, GPU.without("grouped-column-reduction"))


def test_in_float32_groups_are_rows():
    workload, centred, end = grouped(128, "float32")
    assert centred not in written(workload, end, 16)


def chain_before_columns(columns, relu):
    """A chain of one or two operations in float32 before a reduction over so many blocks of 32 columns."""
    step, width = Step(), 32 * columns
    x = step.op(Kind.SORT, (step.input(B, width),), (B, width))
    biased = step.op(Kind.ELEMENTWISE, (x, x), (B, width), primitive="add")
    made = step.op(Kind.ELEMENTWISE, (biased,), (B, width), primitive="max") if relu else biased
    mean = step.op(Kind.REDUCE, (made,), (width,), primitive="reduce_sum")
    end = step.op(Kind.SORT, (step.op(Kind.ELEMENTWISE, (made, mean), (B, width), primitive="mul"),), (B, width))
    return step.workload(end), made, end


@pytest.mark.parametrize(
    ("columns", "relu", "kept"),
    [(40, True, True), (107, True, True), (108, True, False), (39, False, True), (40, False, False)],
)
def test_in_float32_chains_are_computed_apart_on_fewer_blocks_than_there_are_cores(columns, relu, kept):
    """An A100 has 108 cores; one operation alone is computed apart on fewer than 40 blocks of 32 columns."""
    workload, made, end = chain_before_columns(columns, relu)
    assert (made in written(workload, end, batch=64)) is kept


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
    if width > GPU.setting("column-reduction", "least").wide * 32:
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
    kernels = priority_fusion(workload, workload.ops, frozenset(ends), GPU, rows)
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
    kernels = priority_fusion(workload, workload.ops, frozenset(ends), GPU, 32)
    there = {write for kernel in kernels for write in kernel.writes}
    assert (shifted in there, narrow in there) == (not multiplied, multiplied)
