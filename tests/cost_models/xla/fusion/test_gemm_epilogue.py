"""Elementwise operations that run with the product whose result they read. X is a width."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

V4, V5E, V6E = (compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v4", "v5e", "v6e"))
X, BATCH = 1024, 64


def written(step, *outputs, target):
    workload = step.workload(*outputs, batch=BATCH)
    kernels = priority_fusion(workload, workload.ops, frozenset(outputs), target, BATCH)
    return {write for kernel in kernels for write in kernel.writes}


def product(step, *reads):
    return step.dot(reads[0], reads[1] if len(reads) > 1 else step.weight("w", X, X), (B, X), B, X, X)


def two_products(step, value):
    """As the next layer and its weights' gradient read it."""
    return product(step, value), step.dot(value, step.input(B, X), (X, X), X, B, X)


@pytest.mark.parametrize("target", [V4, V5E, V6E], ids=["v4", "v5e", "v6e"])
def test_a_bias_before_products_is_added_by_the_product_that_makes_the_sum(target):
    """Queries, keys and values in float32: the sum is written in bfloat16."""
    step = Step()
    made = product(step, step.input(B, X))
    bias = step.op(Kind.BROADCAST, (step.weight("bias", X),), (B, X))
    total = step.op(Kind.ELEMENTWISE, (made, bias), (B, X), primitive="add")
    scaled = step.op(Kind.ELEMENTWISE, (total,), (B, X), dtype="bfloat16", primitive="mul")
    found = written(step, *two_products(step, scaled), target=target)
    assert scaled in found
    assert made not in found


def test_an_operation_that_reads_another_value_too_runs_with_the_product():
    """The gradient of a ReLU."""
    step = Step()
    made = product(step, step.input(B, X))
    masked = step.op(Kind.ELEMENTWISE, (made, step.input(B, X)), (B, X), dtype="bfloat16", primitive="select_n")
    found = written(step, *two_products(step, masked), target=V6E)
    assert masked in found
    assert made not in found


def test_an_operation_that_makes_as_many_bytes_runs_with_the_product():
    step = Step()
    made = product(step, step.input(B, X))
    scaled = step.op(Kind.ELEMENTWISE, (made,), (B, X), primitive="mul")
    found = written(step, *two_products(step, scaled), target=V6E)
    assert scaled in found
    assert made not in found
