"""Operands of products that are written or computed again. X is a large width."""

import pytest

from cost_models.workload.workload import CONVERT, Kind
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.fusion.recompute_cost import as_computed
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

X, BATCH = 1024, 64
V5E, V4 = compiler_profile("tpu", chip="tpu-v5e"), compiler_profile("tpu", chip="tpu-v4")


def elementwise(step, primitive, *reads, dtype="bfloat16"):
    return step.op(Kind.ELEMENTWISE, reads, (B, X), dtype=dtype, primitive=primitive)


def two_products(step, value):
    """As the forward pass and the gradient of weights read an activation."""
    forward = step.dot(value, step.weight("w", X, X), (B, X), B, X, X)
    return forward, step.dot(value, step.input(B, X), (X, X), X, B, X)


def probabilities(step):
    """exp / sum in float32, rounded to bfloat16: 2 x 4 bytes are read to compute it twice, 4 + 3 x 2 to keep it."""
    exp = step.input(B, X)
    quotient = elementwise(step, "div", exp, step.op(Kind.REDUCE, (exp,), (B, 1)), dtype="float32")
    return elementwise(step, CONVERT, quotient)


def silu(step):
    """x / (1 + exp(-x)) in bfloat16: 2 x 2 bytes are read to compute it twice, 2 + 3 x 2 to keep it."""
    x = step.input(B, X, dtype="bfloat16")
    return elementwise(step, "mul", x, elementwise(step, "logistic", x))


def softmax(step):
    """exp / sum in bfloat16."""
    exp = step.input(B, X, dtype="bfloat16")
    return elementwise(step, "div", exp, step.op(Kind.REDUCE, (exp,), (B, 1), dtype="bfloat16"))


def elu(step):
    x = step.input(B, X, dtype="bfloat16")
    return elementwise(step, "select_n", x, elementwise(step, "expm1", x))


def relu(step):
    return elementwise(step, "max", step.input(B, X, dtype="bfloat16"))


@pytest.mark.parametrize(
    ("activation", "kept"), [(probabilities, True), (silu, True), (softmax, False), (elu, False), (relu, False)]
)
def test_v4_keeps_what_takes_longer_to_compute_than_to_read(activation, kept):
    step = Step()
    value = activation(step)
    assert (value in written(step, *two_products(step, value), target=V4)) is kept


@pytest.mark.parametrize("activation", [probabilities, silu, softmax, elu, relu])
def test_other_tpus_compute_activations_again(activation):
    step = Step()
    value = activation(step)
    assert value not in written(step, *two_products(step, value), target=V5E)


def gradient_of_scores(step):
    """Made in float32 of 4 and 2 bytes an element and small sums, in the dtype to which products round it."""
    exp, incoming = step.input(B, X), step.input(B, X, dtype="bfloat16")
    wide = elementwise(step, CONVERT, incoming, dtype="float32")
    mean = step.op(Kind.REDUCE, (exp,), (B, 1))
    product = elementwise(step, "mul", wide, exp, dtype="float32")
    return elementwise(step, "add", product, mean, exp)


def test_what_products_and_sums_read_would_be_handed_to_them_in_float32():
    """12 bytes are read to compute it twice; 6 + 3 x 4 would be to keep it, 6 + 3 x 2 if it were rounded before."""
    step = Step()
    gradient = gradient_of_scores(step)
    ends = two_products(step, gradient)
    assert gradient not in written(step, *ends, target=V5E)
    bias = step.op(Kind.REDUCE, (gradient,), (X,))
    assert gradient not in written(step, *ends, bias, target=V5E)


def test_what_convolutions_read_is_rounded_where_it_is_written():
    step = Step()
    gradient = gradient_of_scores(step)
    ends = [step.op(Kind.CONV, (gradient, step.weight(f"w{n}", X, X)), (B, X)) for n in range(2)]
    assert gradient in written(step, *ends, target=V5E)


@pytest.mark.parametrize("turned", [True, False])
def test_products_that_read_a_loops_stack_in_another_order_take_nothing_in(turned):
    """The gradient of a head's weights, of what a recurrent layer stacked up by time and hands on by sample."""
    step = Step()
    stack = step.op(Kind.LOOP, (step.input(8, B, 16),), (8, B, 16), primitive="scan", repeat=8)
    by_sample = step.op(Kind.MOVE, (stack,), (B, 8, 16), primitive="transpose") if turned else stack
    logits = step.input(B, 8, X)
    gradient = step.op(Kind.ELEMENTWISE, (logits,), (B, 8, X), primitive="exp")
    end = step.op(Kind.DOT, (by_sample, gradient), (16, X), primitive="dot_general")
    assert (gradient in written(step, end, target=V5E)) is turned


def test_arithmetic_is_counted_once_however_often_it_is_named():
    step = Step()
    silu(step)
    workload = step.workload(batch=BATCH)
    arithmetic = V4.rules["recompute-cost"](workload, Graph(workload.ops, frozenset(), V4), BATCH)
    assert [arithmetic.weighs(op) for op in workload.ops] == [True, False]
    assert arithmetic.bytes_of(0b1) == dict(V4.setting("recompute-cost", "costs"))["logistic"] * BATCH * X


def test_sizes_before_rounding():
    step = Step()
    gradient, rounded = gradient_of_scores(step), probabilities(step)
    ends = (*two_products(step, gradient), *two_products(step, rounded))
    workload = step.workload(*ends, batch=BATCH)
    sizes = [size.at(BATCH) for size in workload.sizes]
    found = as_computed(workload, Graph(workload.ops, frozenset(ends), V5E), sizes)
    assert found[gradient] == 2 * sizes[gradient] == 4 * BATCH * X
    assert found[rounded] == sizes[rounded]  # a conversion that the step itself asks for


def written(step, *outputs, target):
    """Every tensor that reaches memory."""
    workload = step.workload(*outputs, batch=BATCH)
    kernels = priority_fusion(workload, workload.ops, frozenset(outputs), target, BATCH)
    return {write for kernel in kernels for write in kernel.writes}
