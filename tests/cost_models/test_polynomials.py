import pytest

from cost_models.affine import Affine
from cost_models.polynomials import as_polynomials
from cost_models.workload import CONVERT, Kind, Op
from tests.cost_models.made import B, Step


def times(kind, primitive, dtype="float32"):
    """How often an element counts what it counted before."""
    step = Step()
    step.op(kind, (step.input(B, 8),), (B, 8), primitive=primitive, dtype=dtype, flops=Affine(0, 8))
    (op,) = as_polynomials(step.workload()).ops
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


def test_bodies_of_loops_too():
    inner = Step()
    x = inner.input(B, 8)
    y = inner.op(Kind.ELEMENTWISE, (x,), (B, 8), primitive="tanh", flops=Affine(0, 8))
    inner.ops = [Op(Kind.LOOP, "scan", (x,), (y,), repeat=3, body=tuple(inner.ops), results=(y,))]
    (loop,) = as_polynomials(inner.workload()).ops
    assert loop.total_flops == Affine(0, 3 * 8 * 33)
