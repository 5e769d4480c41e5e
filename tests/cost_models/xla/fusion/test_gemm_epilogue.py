"""Which elementwise operations run with the product whose result they read. X is a width."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

V4, V5E, V6E = (compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v4", "v5e", "v6e"))
X, BATCH = 1024, 64


def written(step, *outputs, target):
    workload = step.workload(*outputs, batch=BATCH)
    kernels = kernels_of(workload, workload.ops, frozenset(outputs), target, BATCH)
    return {write for kernel in kernels for write in kernel.writes}


def product(step, *reads):
    return step.dot(reads[0], reads[1] if len(reads) > 1 else step.weight("w", X, X), (B, X), B, X, X)


def two_products(step, value):
    """As the next layer and its weights' gradient read it."""
    return product(step, value), step.dot(value, step.input(B, X), (X, X), X, B, X)


@pytest.mark.parametrize(("target", "apart"), [(V4, False), (V5E, False), (V6E, True)], ids=["v4", "v5e", "v6e"])
def test_a_bias_before_products_is_added_where_the_sum_is_rounded_or_by_these(target, apart):
    """Queries, keys and values in float32: v5e writes the sum in bfloat16, v6e the product in float32."""
    step = Step()
    made = product(step, step.input(B, X))
    bias = step.op(Kind.BROADCAST, (step.weight("bias", X),), (B, X))
    total = step.op(Kind.ELEMENTWISE, (made, bias), (B, X), primitive="add")
    scaled = step.op(Kind.ELEMENTWISE, (total,), (B, X), dtype="bfloat16", primitive="mul")
    found = written(step, *two_products(step, scaled), target=target)
    assert (made in found, scaled in found) == (apart, not apart)


def test_what_reads_another_value_too_runs_with_the_product_on_v6e_as_well():
    """The gradient of a ReLU."""
    step = Step()
    made = product(step, step.input(B, X))
    masked = step.op(Kind.ELEMENTWISE, (made, step.input(B, X)), (B, X), dtype="bfloat16", primitive="select_n")
    found = written(step, *two_products(step, masked), target=V6E)
    assert masked in found
    assert made not in found


def test_what_is_as_wide_runs_with_the_product_on_v6e_as_well():
    step = Step()
    made = product(step, step.input(B, X))
    scaled = step.op(Kind.ELEMENTWISE, (made,), (B, X), primitive="mul")
    found = written(step, *two_products(step, scaled), target=V6E)
    assert scaled in found
    assert made not in found
