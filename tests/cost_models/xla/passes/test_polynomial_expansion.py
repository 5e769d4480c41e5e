import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import ACROSS, CONVERT, NARROW_SUM, Kind, Op
from cost_models.xla.passes.polynomial_expansion import polynomial_expansion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU = compiler_profile("cpu")


def times(kind, primitive, dtype="float32"):
    """The factor by which the FLOPs of an element grow."""
    step = Step()
    step.op(kind, (step.input(B, 8),), (B, 8), primitive=primitive, dtype=dtype, flops=Affine(0, 8))
    (op,) = polynomial_expansion(step.workload(), CPU, 0).ops
    return op.flops.per_sample / 8


@pytest.mark.parametrize(
    ("kind", "primitive", "expected"),
    [
        (Kind.ELEMENTWISE, "add", 1),
        (Kind.ELEMENTWISE, "tanh", 33),
        (Kind.ELEMENTWISE, "pow", 340),
        (Kind.ELEMENTWISE, "integer_pow", 1),
        (Kind.EXPENSIVE, "erf_inv", 5),
        (Kind.DOT, "dot_general", 1),
    ],
)
def test_functions_take_as_many_multiply_adds_as_were_timed(kind, primitive, expected):
    assert times(kind, primitive) == expected


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 20), ("float16", 20), ("float32", 1)])
def test_rounding_takes_shifts_and_additions_and_widening_does_not(dtype, expected):
    assert times(Kind.ELEMENTWISE, CONVERT, dtype) == expected


@pytest.mark.parametrize(("kept", "expected"), [((8,), 360), ((4, 8), 360), ((B,), 100), ((), 100)])
def test_sums_of_narrow_numbers_slide_a_window_down_columns_slower_than_along_rows(kept, expected):
    step = Step()
    step.op(Kind.REDUCE, (step.input(B, 4, 8),), kept, primitive=NARROW_SUM, flops=Affine(0, 32))
    (op,) = polynomial_expansion(step.workload(), CPU, 0).ops
    assert op.flops.per_sample / 32 == expected


@pytest.mark.parametrize(
    ("row", "dtype", "expected"),
    [(1024, "float32", 380), (512, "float32", 220), (2048, "bfloat16", 380), (784, "float32", 65), (3, "float32", 60)],
)
def test_a_matrix_read_across_takes_longest_where_its_rows_are_whole_pages(row, dtype, expected):
    step = Step()
    step.op(Kind.ELEMENTWISE, (step.input(100, row, dtype=dtype),), (row, 100), primitive=ACROSS, flops=Affine(1))
    (op,) = polynomial_expansion(step.workload(), CPU, 0).ops
    assert op.flops.fixed == expected


def test_bodies_of_loops_too():
    inner = Step()
    x = inner.input(B, 8)
    y = inner.op(Kind.ELEMENTWISE, (x,), (B, 8), primitive="tanh", flops=Affine(0, 8))
    inner.ops = [Op(Kind.LOOP, "scan", (x,), (y,), repeat=3, body=tuple(inner.ops), results=(y,))]
    (loop,) = polynomial_expansion(inner.workload(), CPU, 0).ops
    assert loop.total_flops == Affine(0, 3 * 8 * 33)
