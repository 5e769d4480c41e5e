"""Values that are written to memory and values that stay inside a kernel, on small graphs. X is a large width."""

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import UNEVEN_PAD, Kind, Op, Phase
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

X = 1024
GPU, TPU, CPU = compiler_profile("gpu"), compiler_profile("tpu"), compiler_profile("cpu")
EAGER = compiler_profile("gpu", jit_compile=False)


def kernels(step, *outputs, target=GPU, batch=64):
    workload = step.workload(*outputs, batch=batch)
    return priority_fusion(workload, workload.ops, frozenset(outputs), target, batch)


def written(step, *outputs, **how):
    """Every tensor that reaches memory."""
    return {write for kernel in kernels(step, *outputs, **how) for write in kernel.writes}


def chain(step, x, *primitives):
    for primitive in primitives:
        x = step.op(Kind.ELEMENTWISE, (x,), (B, X), primitive=primitive, flops=Affine(0, X))
    return x


def test_a_chain_of_elementwise_operations_is_one_kernel_that_reads_once_and_writes_once():
    step = Step()
    x = step.input(B, X)
    (kernel,) = kernels(step, end := chain(step, x, "exp", "neg", "tanh"))
    assert (kernel.reads, kernel.writes, kernel.fused) == ((x,), (end,), 3)
    assert kernel.flops == Affine(0, 3 * X)


def test_without_a_compiler_every_operation_is_a_kernel():
    step = Step()
    end = chain(step, step.input(B, X), "exp", "neg", "tanh")
    assert [kernel.fused for kernel in kernels(step, end, target=EAGER)] == [1, 1, 1]


def test_a_product_writes_its_result_and_on_gpus_its_operands_exist():
    step = Step()
    w, made = step.weight("w", X, X), chain(step, step.input(B, X), "tanh")
    y = step.dot(made, w, (B, X), B, X, X)
    assert written(step, y) == {made, y}
    assert written(step, y, target=TPU) == {y}


def test_a_reduction_takes_what_makes_its_operand_in():
    step = Step()
    total = step.op(Kind.REDUCE, (chain(step, step.input(B, X), "square"),), (B,), flops=Affine(0, X))
    (kernel,) = kernels(step, total)
    assert kernel.writes == (total,)
    assert kernel.flops == Affine(0, 2 * X)


def test_on_tpus_a_product_ends_where_its_elementwise_chain_ends():
    step = Step()
    w, x = step.weight("w", X, X), step.input(B, X)
    y = step.dot(x, w, (B, X), B, X, X)
    end = chain(step, y, "tanh")
    (kernel,) = kernels(step, end, target=TPU)
    assert (kernel.writes, kernel.op.kind) == ((end,), Kind.DOT)
    assert kernel.flops == Affine(0, 2 * X * X + X)
    assert written(step, end) == {y, end}


def test_a_product_with_two_readers_is_written_even_on_tpus():
    step = Step()
    w, x = step.weight("w", X, X), step.input(B, X)
    y = step.dot(x, w, (B, X), B, X, X)
    ends = chain(step, y, "tanh"), chain(step, y, "exp")
    assert written(step, *ends, target=TPU) == {y, *ends}


def test_two_products_in_one_sum_do_not_share_a_kernel():
    step = Step()
    w, x = step.weight("w", X, X), step.input(B, X)
    left, right = (step.dot(x, w, (B, X), B, X, X) for _ in range(2))
    total = step.op(Kind.ELEMENTWISE, (left, right), (B, X), primitive="add")
    assert len(kernels(step, total, target=TPU)) == 2


def two_readers_far_apart(step, shared):
    """A reader of `shared` before a product and one after it: they cannot be one kernel."""
    w = step.weight("w", X, X)
    early = chain(step, shared, "exp")
    y = step.dot(early, w, (B, X), B, X, X)
    late = step.op(Kind.ELEMENTWISE, (shared, y), (B, X), primitive="mul")
    return y, late


def test_a_cheap_value_of_one_large_tensor_is_computed_again():
    step = Step()
    shared = chain(step, step.input(B, X), "neg")
    assert shared not in written(step, *two_readers_far_apart(step, shared))


def test_a_sum_of_many_large_tensors_is_kept_rather_than_read_again():
    step = Step()
    shared = step.input(B, X)
    for _ in range(6):
        shared = step.op(Kind.ELEMENTWISE, (shared, step.input(B, X)), (B, X), primitive="add")
    assert shared in written(step, *two_readers_far_apart(step, shared))


def test_a_dropout_mask_is_kept_as_one_byte_an_element_not_as_random_bits():
    step = Step()
    bits = step.op(Kind.RANDOM, (step.input(2, dtype="uint32"),), (B, X), dtype="uint32")
    mask = step.op(Kind.ELEMENTWISE, (bits,), (B, X), dtype="bool", primitive="lt")
    ends = two_readers_far_apart(step, mask)
    assert mask in written(step, *ends)
    assert bits not in written(step, *ends)
    assert mask not in written(step, *ends, target=TPU)  # random bits are cheap there: computed again


def test_views_are_their_operand():
    step = Step()
    x = step.input(B, X)
    view = step.op(Kind.VIEW, (x,), (B, 32, X // 32), primitive="reshape")
    (kernel,) = kernels(step, end := step.op(Kind.ELEMENTWISE, (view,), (B, 32, X // 32), primitive="exp"))
    assert (kernel.reads, kernel.writes) == ((x,), (end,))


@pytest.mark.parametrize(("kind", "exists"), [(Kind.CONV, False), (Kind.DOT, True)])
def test_padding_that_only_convolutions_read_costs_nothing(kind, exists):
    step = Step()
    padded = step.op(Kind.MOVE, (step.input(B, X),), (B, X + 2), primitive="pad")
    end = step.op(kind, (padded, step.weight("w", X + 2, X)), (B, X))
    assert (padded in written(step, end)) is exists


def test_what_crosses_into_a_rematerialized_region_exists_and_is_not_merged_with_what_is_recomputed():
    step = Step()
    x = step.input(B, X)
    first = chain(step, x, "tanh")
    behind = step.tensor(B, X)
    step.ops.append(Op(Kind.BARRIER, "optimization_barrier", (first,), (behind,), region=1))
    again = step.op(Kind.ELEMENTWISE, (behind,), (B, X), primitive="exp", region=1)
    assert written(step, again) == {first, again}


def test_loops_carry_the_kernels_of_one_iteration():
    step = Step()
    x = step.input(B, X)
    inner, out = step.tensor(B, X), step.tensor(B, X)
    half = step.tensor(B, X)
    body = (Op(Kind.ELEMENTWISE, "exp", (x,), (half,)), Op(Kind.ELEMENTWISE, "neg", (half,), (inner,)))
    step.ops.append(Op(Kind.LOOP, "scan", (x,), (out,), repeat=5, body=body, results=(inner,)))
    (kernel,) = kernels(step, out)
    assert kernel.op.repeat == 5
    assert [(part.reads, part.writes, part.fused) for part in kernel.body] == [((x,), (inner,), 2)]


def test_phases_do_not_matter_to_what_is_fused():
    step = Step()
    forward = chain(step, step.input(B, X), "exp")
    step.phase = Phase.BACKWARD
    assert len(kernels(step, chain(step, forward, "neg"))) == 1


def test_uneven_padding_is_written_where_libraries_pad_both_ends_alike():
    step = Step()
    padded = step.op(Kind.MOVE, (step.input(B, X),), (B, X + 1), primitive=UNEVEN_PAD)
    end = step.op(Kind.CONV, (padded, step.weight("w", 3, X)), (B, X))
    assert padded in written(step, end)
    assert padded not in written(step, end, target=TPU)
    assert padded not in written(step, end, target=CPU)


@pytest.mark.parametrize(("dtype", "of", "kept"), [("bfloat16", "float32", True), ("float32", "bfloat16", False)])
def test_a_product_ends_in_what_makes_no_more_bytes_of_it(dtype, of, kept):
    step = Step()
    gemm = (Affine(1), Affine(0, 1), Affine(X), Affine(X))
    x, w = step.input(B, X, dtype=dtype), step.weight("w", X, X, dtype=dtype)
    product = step.op(Kind.DOT, (x, w), (B, X), primitive="dot_general", dtype=dtype, gemm=gemm)
    other = step.op(Kind.ELEMENTWISE, (product,), (B, X), primitive="convert_element_type", dtype=of)
    end = step.op(Kind.SORT, (other,), (B, X), dtype=of)
    assert (product in written(step, end, target=TPU)) is kept


def gradient_of_gelu(step, *, elsewhere=False):
    """dy = product; e = dy * a + (dy * x) * b, all elementwise; `elsewhere`: something else reads dy as well."""
    a, b = (step.op(Kind.REDUCE, (step.input(B, X, 2),), (B, X)) for _ in range(2))
    dy = step.dot(step.input(B, X), step.weight("w", X, X), (B, X), B, X, X)
    left = step.op(Kind.ELEMENTWISE, (dy, a), (B, X), primitive="mul")
    right = step.op(Kind.ELEMENTWISE, (dy, b), (B, X), primitive="mul")
    end = step.op(Kind.ELEMENTWISE, (left, right), (B, X), primitive="add")
    ends = (end, step.dot(dy, dy, (X, X), X, B, X)) if elsewhere else (end,)
    return dy, {left, right}, ends


def test_a_product_goes_on_into_several_operations_that_end_in_one():
    step = Step()
    dy, between, (end,) = gradient_of_gelu(step)
    found = written(step, end, target=TPU)
    assert end in found
    assert found.isdisjoint({dy, *between})
    assert dy in written(step, end, target=GPU)


def test_a_product_that_something_else_reads_is_written():
    step = Step()
    dy, _, ends = gradient_of_gelu(step, elsewhere=True)
    assert dy in written(step, *ends, target=TPU)
