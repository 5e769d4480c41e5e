"""Values that XLA:CPU writes and values that each reader computes again, on small graphs. X is a large width."""

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, FLATTEN, Kind, Phase
from cost_models.xla.fusion.cpu_fusion import cpu_fusion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

X = 1024
CPU = compiler_profile("cpu")


def kernels(step, *outputs, batch=64):
    workload = step.workload(*outputs, batch=batch)
    return cpu_fusion(workload, workload.ops, frozenset(outputs), CPU, batch)


def written(step, *outputs, **how):
    """Every tensor that reaches memory."""
    return {write for kernel in kernels(step, *outputs, **how) for write in kernel.writes}


def reads(step, end, *outputs):
    """The tensors that the kernel that writes `end` reads."""
    return next(kernel.reads for kernel in kernels(step, *outputs) if end in kernel.writes)


def apply(step, primitive, *operands, dtype="float32"):
    return step.op(Kind.ELEMENTWISE, operands, (B, X), primitive=primitive, dtype=dtype, flops=Affine(0, X))


def product(step, operand):
    return step.dot(operand, step.weight("w", X, X), (B, X), B, X, X)


def test_what_is_cheap_is_computed_in_each_of_its_readers():
    step = Step()
    x = step.input(B, X)
    shared = apply(step, "neg", x)
    ends = [apply(step, "abs", shared) for _ in range(3)]
    assert written(step, *ends) == set(ends)
    assert all(reads(step, end, *ends) == (x,) for end in ends)


def test_what_is_costly_is_computed_once_where_two_kernels_read_it():
    step = Step()
    shared = apply(step, "exp", step.input(B, X))
    ends = [apply(step, "abs", shared) for _ in range(2)]
    assert written(step, *ends) == {shared, *ends}
    assert written(step, ends[0]) == {ends[0]}


def test_rounding_to_bfloat16_is_costly_and_rounding_to_float16_is_not():
    for dtype, kept in (("bfloat16", True), ("float16", False)):
        step = Step()
        shared = apply(step, CONVERT, step.input(B, X), dtype=dtype)
        ends = [apply(step, "abs", shared, dtype=dtype) for _ in range(2)]
        assert (shared in written(step, *ends)) is kept


def test_what_is_costly_is_not_computed_for_every_element_of_a_broadcast():
    step = Step()
    small = step.op(Kind.ELEMENTWISE, (step.input(B, 1),), (B, 1), primitive="rsqrt")
    wide = step.op(Kind.BROADCAST, (small,), (B, X))
    assert small in written(step, end := apply(step, "mul", wide, step.input(B, X)), end)


def test_what_a_product_reads_is_written_for_it_and_computed_again_by_others():
    step = Step()
    x = step.input(B, X)
    activation = apply(step, "max", x)
    ends = product(step, activation), apply(step, "neg", activation)
    assert written(step, *ends) == {activation, *ends}
    assert reads(step, ends[1], *ends) == (x,)


def test_a_sum_of_two_large_values_that_a_product_reads_is_computed_once():
    step = Step()
    total = apply(step, "add", step.input(B, X), step.input(B, X))
    ends = product(step, total), apply(step, "neg", total)
    assert reads(step, ends[1], *ends) == (total,)


def test_a_sum_of_two_large_values_that_goes_into_all_its_readers_is_not_written():
    step = Step()
    total = apply(step, "add", step.input(B, X), step.input(B, X))
    ends = [apply(step, "neg", total) for _ in range(2)]
    assert written(step, *ends) == set(ends)


def test_a_sum_that_reaches_its_reader_through_a_product_as_well_is_written():
    step = Step()
    total = apply(step, "add", step.input(B, X), step.input(B, X))
    behind = product(step, apply(step, "neg", total))
    end = apply(step, "mul", total, behind)
    assert total in written(step, end)
    assert total in reads(step, end, end)


def test_adding_a_bias_is_as_cheap_as_one_operand():
    step = Step()
    bias = step.op(Kind.BROADCAST, (step.weight("b", X),), (B, X))
    x = step.input(B, X)
    total = apply(step, "add", x, bias)
    ends = product(step, total), apply(step, "neg", total)
    assert x in reads(step, ends[1], *ends)
    assert total not in reads(step, ends[1], *ends)


def test_features_are_joined_by_a_kernel_of_its_own():
    step = Step()
    parts = [apply(step, "neg", step.input(B, X)) for _ in range(2)]
    joined = step.op(Kind.MOVE, parts, (B, 2 * X), primitive="concatenate")
    end = step.op(Kind.ELEMENTWISE, (joined,), (B, 2 * X), primitive="abs")
    assert written(step, end) == {*parts, joined, end}


def test_what_is_joined_along_another_dimension_is_fused():
    step = Step()
    parts = [step.op(Kind.ELEMENTWISE, (step.input(B, 1, X),), (B, 1, X), primitive="neg") for _ in range(2)]
    joined = step.op(Kind.MOVE, parts, (B, 2, X), primitive="concatenate")
    end = step.op(Kind.ELEMENTWISE, (joined,), (B, 2, X), primitive="abs")
    assert written(step, end) == {end}


def test_a_broadcast_that_something_beside_a_reduction_reads_is_written_for_the_reduction():
    step = Step()
    scale = step.op(Kind.BROADCAST, (step.weight("gamma", X),), (B, X))
    x = step.input(B, X)
    total = step.op(Kind.REDUCE, (apply(step, "mul", x, scale),), (B,), primitive="reduce_sum")
    other = apply(step, "mul", scale, x)
    assert written(step, total, other) == {scale, total, other}
    assert scale in reads(step, total, total, other)
    assert scale not in reads(step, other, total, other)


def test_a_broadcast_that_a_reduction_alone_reads_is_part_of_it():
    step = Step()
    scale = step.op(Kind.BROADCAST, (step.weight("gamma", X),), (B, X))
    total = step.op(Kind.REDUCE, (apply(step, "mul", step.input(B, X), scale),), (B,), primitive="reduce_sum")
    assert written(step, total) == {total}


def test_a_kernel_may_write_over_what_it_reads_element_by_element_alone():
    step = Step()
    moved, aligned = step.input(B, X), step.input(B, X)
    turned = step.op(Kind.MOVE, (moved,), (B, X), primitive="transpose")
    (kernel,) = kernels(step, apply(step, "mul", turned, aligned))
    assert kernel.reads == (moved, aligned) or kernel.reads == (aligned, moved)
    assert kernel.in_place == (aligned,)


def test_what_a_product_writes_as_a_matrix_is_not_written_over():
    step = Step()
    result = step.dot(step.input(B, 8, X), step.weight("w", X, X), (B, 8, X), (B, 8), X, X)
    end = step.op(Kind.ELEMENTWISE, (result,), (B, 8, X), primitive="neg")
    assert next(kernel for kernel in kernels(step, end) if end in kernel.writes).in_place == ()


def test_loops_carry_the_kernels_of_one_iteration():
    step = Step()
    outer = step.input(B, X)
    inner = apply(step, "neg", outer)
    body = (step.ops.pop(),)
    end = step.op(Kind.LOOP, (outer,), (B, X), body=body, results=(inner,), repeat=3)
    (kernel,) = kernels(step, end)
    assert [one.writes for one in kernel.body] == [(inner,)]


def test_updates_of_one_variable_are_a_kernel_for_each_piece_of_state():
    step = Step()
    weight, slot, gradient = step.weight("w", X, X), step.weight("m", X, X), step.input(X, X)
    step.phase = Phase.UPDATE
    mean = step.op(Kind.ELEMENTWISE, (slot, gradient), (X, X), primitive="add")
    new = step.op(Kind.ELEMENTWISE, (weight, mean), (X, X), primitive="sub")
    assert [kernel.writes for kernel in kernels(step, mean, new)] == [(mean,), (new,)]


def test_what_is_read_in_another_shape_is_not_written_over_an_operand():
    step = Step()
    made = apply(step, "neg", step.input(B, X))
    view = step.op(Kind.VIEW, (made,), (B, 2, X // 2), primitive="reshape")
    end = step.op(Kind.SORT, (view,), (B, 2, X // 2))
    assert next(kernel for kernel in kernels(step, end) if made in kernel.writes).in_place == ()


def test_a_call_writes_over_what_it_reads_element_by_element():
    step = Step()
    x, y = step.input(B, X), step.input(B, X)
    total = step.op(Kind.REDUCE, (x,), (B,), primitive="reduce_sum")
    wide = step.op(Kind.BROADCAST, (total,), (B, X))
    (kernel,) = kernels(step, apply(step, "mul", wide, y))
    assert set(kernel.reads) == {x, y}
    assert kernel.in_place == (y,)


def test_padding_is_not_part_of_kernels_of_many_operations():
    for length, kept in ((8, False), (40, True)):
        step = Step()
        end = padded = step.op(Kind.MOVE, (step.input(B, X - 1),), (B, X), primitive="pad")
        for _ in range(length):
            end = apply(step, "neg", end)
        assert (padded in written(step, end)) is kept


def viewed_as_a_matrix(step, tensor, width):
    """A product that reads this of (B, 8, width) as a matrix."""
    flat = step.op(Kind.MOVE, (tensor,), ((B, 8 * width),), primitive=FLATTEN)
    return step.dot(flat, step.weight("w", width, X), (B, 8, X), (B, 8), width, X)


def test_a_matrix_of_what_is_in_memory_for_all_is_a_view_of_it():
    step = Step()
    parts = [step.input(B, 8, X) for _ in range(2)]
    made = step.op(Kind.ELEMENTWISE, parts, (B, 8, X), primitive="add")
    total = step.op(Kind.REDUCE, (made,), (X,), primitive="reduce_sum")
    end = viewed_as_a_matrix(step, made, X)
    assert written(step, total, end) == {made, total, end}
    assert made in reads(step, end, total, end)


def test_a_matrix_of_what_is_cheap_is_made_for_the_product_alone():
    step = Step()
    x = step.input(B, 8, X)
    made = step.op(Kind.ELEMENTWISE, (x,), (B, 8, X), primitive="neg")
    other = step.op(Kind.SORT, (made,), (B, 8, X))
    end = viewed_as_a_matrix(step, made, X)
    assert written(step, other, end) == {made, made + 2, other, end}
    assert reads(step, made + 2, other, end) == (x,)
