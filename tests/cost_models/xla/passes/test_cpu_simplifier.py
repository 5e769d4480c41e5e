import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, UNEVEN_PAD, Kind, Phase
from cost_models.xla.passes.cpu_simplifier import cpu_simplifier
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU = compiler_profile("cpu")

X = 8


def named(workload):
    return [(op.kind, op.primitive) for op in workload.ops]


def test_a_random_number_is_made_of_two_words():
    step = Step()
    bits = step.op(Kind.RANDOM, (step.input(2, dtype="uint32"),), (B, X), dtype="uint32", primitive="random_bits")
    drawn, made = (workload := cpu_simplifier(step.workload(bits), CPU, 0)).ops
    assert drawn.writes == made.reads
    assert [workload.tensors[word] for word in drawn.writes] == [step.tensors[bits]] * 2
    assert made.writes == (bits,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_erfc_has_an_exponential_and_two_quotients_in_float32(dtype):
    step = Step()
    x = step.input(B, X, dtype=dtype)
    end = step.op(Kind.EXPENSIVE, (x,), (B, X), dtype=dtype, primitive="erfc", flops=Affine(0, 16 * X))
    workload = cpu_simplifier(step.workload(end), CPU, 0)
    up, down = ([CONVERT], CONVERT) if dtype == "bfloat16" else ([], "copy")
    assert [op.primitive for op in workload.ops] == [*up, "square", "neg", "exp", "div", "abs", "div", "select_n", down]
    assert {workload.tensors[op.writes[0]].dtype for op in workload.ops[:-1]} == {"float32"}
    assert Affine.sum(op.flops for op in workload.ops) == Affine(0, 5 * 16 * X)  # as timed
    assert workload.ops[-1].writes == (end,)


def test_a_product_with_a_converted_mask_is_a_selection():
    step = Step()
    mask, x = step.input(B, X, dtype="bool"), step.input(B, X)
    number = step.op(Kind.ELEMENTWISE, (mask,), (B, X), primitive=CONVERT)
    step.op(Kind.ELEMENTWISE, (number, x), (B, X), primitive="mul")
    last = cpu_simplifier(step.workload(), CPU, 0).ops[-1]
    assert (last.primitive, last.reads) == ("select_n", (mask, x))


def test_the_larger_of_a_maximum_and_a_constant_is_the_maximum():
    step = Step()
    largest = step.op(Kind.REDUCE, (step.input(B, X),), (B,), primitive="reduce_max")
    step.op(Kind.ELEMENTWISE, (largest,), (B,), primitive="max")
    assert named(cpu_simplifier(step.workload(), CPU, 0))[-1] == (Kind.VIEW, "max")


@pytest.mark.parametrize("scalar_first", [True, False])
def test_a_product_with_a_scalar_stays(scalar_first):
    step = Step()
    reads = (step.input(), step.input(X))
    step.op(Kind.DOT, reads if scalar_first else reads[::-1], (X,), gemm=(Affine(1), Affine(1), Affine(X), Affine(1)))
    workload = step.workload()
    assert cpu_simplifier(workload, CPU, 0).ops == workload.ops


def test_products_of_groups_read_transposed_copies_unless_the_groups_come_first():
    step = Step()
    first, behind = step.input(B, 4, 16, X), step.input(B, 16, 4, X)
    gemm = (Affine(0, 4), Affine(16), Affine(16), Affine(X))
    step.op(Kind.DOT, (first, behind), (B, 4, 16, 16), gemm=gemm)
    moved, product = cpu_simplifier(step.workload(), CPU, 0).ops
    assert (moved.kind, moved.reads) == (Kind.MOVE, (behind,))
    assert product.reads == (first, *moved.writes)


def test_gradients_of_weights_read_transposed_copies():
    step = Step()
    x, dy, weight = step.input(B, 16, X), step.input(B, 16, X), step.input(3, X, X)
    step.op(Kind.CONV, (x, weight), (B, 16, X))
    step.phase = Phase.BACKWARD
    step.op(Kind.CONV, (x, dy), (3, X, X))
    step.op(Kind.CONV, (dy, weight), (B, 16, X))
    step.op(Kind.DOT, (dy, x), (X, X), gemm=(Affine(1), Affine(X), Affine(0, 16), Affine(X)))
    read = [list(op.reads) for op in cpu_simplifier(step.workload(), CPU, 0).ops if op.primitive == "transpose"]
    assert read == [[x], [dy], [dy]]


def test_transposing_a_matrix_is_free_and_transposing_more_is_not():
    step = Step()
    step.op(Kind.MOVE, (step.input(B, X),), (X, B), primitive="transpose")
    step.op(Kind.MOVE, (step.input(B, 4, X),), (B, X, 4), primitive="transpose")
    assert [kind for kind, _ in named(cpu_simplifier(step.workload(), CPU, 0))] == [Kind.VIEW, Kind.MOVE]


def test_between_two_constants_is_one_operation_in_float32():
    for dtype, last in (("float32", "clamp"), ("bfloat16", "min")):
        step = Step()
        x = step.input(B, X, dtype=dtype)
        lower = step.op(Kind.ELEMENTWISE, (x,), (B, X), dtype=dtype, primitive="max")
        step.op(Kind.ELEMENTWISE, (lower,), (B, X), dtype=dtype, primitive="min")
        assert named(cpu_simplifier(step.workload(), CPU, 0))[-1] == (Kind.ELEMENTWISE, last)


def test_what_a_convolution_pads_by_itself_is_transposed_before():
    step = Step()
    x, dy = step.input(B, 16, X), step.input(B, 16, X)
    padded = step.op(Kind.MOVE, (x,), (B, 17, X), primitive=UNEVEN_PAD)
    step.phase = Phase.BACKWARD
    step.op(Kind.CONV, (padded, dy), (2, X, X))
    _, moved, padding, _, gradient = (workload := cpu_simplifier(step.workload(), CPU, 0)).ops
    assert (moved.primitive, moved.reads) == ("transpose", (x,))
    assert (padding.primitive, padding.reads) == (UNEVEN_PAD, moved.writes)
    assert gradient.reads[0] == padding.writes[0]
    assert workload.tensors[padding.writes[0]] == workload.tensors[padded]


def test_weights_of_more_than_two_dimensions_are_transposed_for_the_backward_pass():
    step = Step()
    x, kernel, dy = step.input(B, 16, X), step.weight("kernel", X, 4, 2), step.input(B, 16, 4, 2)
    gemm = (Affine(1), Affine(0, 16), Affine(X), Affine(X))
    step.op(Kind.DOT, (x, kernel), (B, 16, 4, 2), gemm=gemm)
    step.phase = Phase.BACKWARD
    step.op(Kind.DOT, (dy, kernel), (B, 16, X), gemm=gemm)
    ops = cpu_simplifier(step.workload(), CPU, 0).ops
    assert [(op.primitive, op.reads[0]) for op in ops if op.kind is Kind.MOVE] == [
        *(("flatten", x), ("flatten", kernel)),
        *(("flatten", dy), ("transpose", kernel)),
    ]


@pytest.mark.parametrize(("inner", "made"), [(1, True), (X, False)])
def test_the_gradient_of_a_convolution_by_groups_is_made_for_all_channels(inner, made):
    step = Step()
    step.phase = Phase.BACKWARD
    end = step.op(Kind.CONV, (step.input(B, 16, X), step.input(B, 16, X)), (3, inner, X))
    workload = cpu_simplifier(step.workload(end), CPU, 0)
    product, *rest = [op for op in workload.ops if op.kind is not Kind.MOVE]
    assert workload.tensors[product.writes[0]].shape == (Affine(3), Affine(X), Affine(X))
    assert [op.primitive for op in rest] == (["select_n", "reduce"] if made else [])
    assert (rest or [product])[-1].writes == (end,)
