from dataclasses import replace
from pathlib import Path

import pytest

from cost_models.errors import WorkloadError
from cost_models.workload.affine import Affine
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import Kind, Phase, Role, Tensor, walk
from tests.builders.workloads import B, Step, dense, looping

ROOT = Path(__file__).resolve().parents[3]
K, N = 96, 40


def test_workloads_are_equal_where_everything_in_them_is_and_keys_of_caches():
    assert dense(K, N) == dense(K, N)
    assert {dense(K, N): "cached"}[dense(K, N)] == "cached"
    workload = dense(K, N)
    for other in (dense(K, N + 1), replace(workload, precision="bfloat16"), replace(workload, ops=workload.ops[:-1])):
        assert other != workload
        assert other not in {workload: "cached"}
    changed = replace(workload, ops=(*workload.ops[:-1], replace(workload.ops[-1], primitive="add")))
    assert hash(changed) == hash(workload)
    assert changed not in {workload: "cached"}


def test_bytes_follow_from_dtype_and_shape():
    tensor = Tensor("bfloat16", (Affine(0, 1), Affine(7), Affine(11)))
    assert tensor.elements == Affine(0, 77)
    assert tensor.bytes == Affine(0, 154)
    assert Tensor("float32", ()).bytes == Affine(4)
    assert Tensor("key", (Affine(3),)).bytes == Affine(24)


def test_an_unknown_dtype_is_an_error_that_lists_the_known():
    with pytest.raises(WorkloadError, match=r"'float7' has no known size; known are bool, .*float32"):
        _ = Tensor("float7", (Affine(2),)).bytes


def test_a_size_that_grows_with_the_square_of_the_batch_is_refused():
    with pytest.raises(WorkloadError, match="square of the batch"):
        _ = Tensor("float32", (Affine(0, 1), Affine(0, 1))).elements


def test_flops_are_those_of_the_products_and_loops_count_every_iteration():
    workload = dense(K, N)
    products = 2 * K * N * 2  # forward, and the gradient of the kernel
    elementwise = 3 * N
    assert workload.flops == Affine(K * N, products + elementwise)
    assert workload.model_flops == Affine(0, products)
    assert looping().flops == Affine(0, 3 * K)


def test_recomputed_products_are_work_but_not_the_models():
    step = Step()
    x, w = step.input(B, K), step.weight("w", K, N)
    y = step.dot(x, w, (B, N), B, K, N)
    again = step.op(Kind.DOT, (x, w), (B, N), flops=Affine(0, 2 * K * N), region=1)
    workload = step.workload(y, again)
    assert workload.flops.per_sample == 4 * K * N
    assert workload.model_flops.per_sample == 2 * K * N


def with_products_after_the_backward_pass(optimizer="muon", **more):
    """`dense`, whose optimizer multiplies its gradient by its transpose, before a second forward pass of 3 columns."""
    step = Step()
    w, w2 = step.weight("w", K, N), step.weight("w2", K, 3)
    step.weight(f"{optimizer}/iteration", role=Role.SLOT)
    x = step.input(B, K)
    y = step.dot(x, w, (B, N), B, K, N)
    step.phase = Phase.BACKWARD
    dw = step.dot(x, y, (K, N), K, B, N)
    step.phase, step.layer = Phase.UPDATE, "muon"
    step.new_value(w, step.dot(dw, dw, (N, N), N, K, N))
    step.layer = "generator"
    return step.workload(step.dot(x, w2, (B, 3), B, K, 3), **more)


def test_an_optimizers_products_are_work_but_not_the_models():
    workload = with_products_after_the_backward_pass()
    passes = 2 * 2 * K * N + 2 * K * 3
    assert workload.flops == Affine(2 * N * K * N, passes)
    assert workload.model_flops == Affine(0, passes), "a second network's forward pass is the model's, whenever it runs"


def test_where_one_batch_alone_is_known_the_scope_decides_what_the_optimizer_does():
    workload = with_products_after_the_backward_pass(batch_exact=True)
    passes = 2 * 2 * K * N + 2 * K * 3
    assert workload.model_flops == Affine(0, passes)


def test_where_one_batch_alone_is_known_products_of_no_optimizers_scope_count():
    """Constants say nothing of what grows: rather too much than a second network's pass left out."""
    workload = with_products_after_the_backward_pass("sgd", batch_exact=True)
    assert workload.model_flops == workload.flops


def test_parameters_and_bytes_by_role():
    workload = dense(K, N, slots=2)
    assert workload.parameters == K * N
    assert workload.variable_bytes(Role.TRAINABLE) == 4 * K * N
    assert workload.variable_bytes(Role.SLOT) == 8 * K * N
    assert workload.variable_bytes(Role.TRAINABLE, Role.SLOT) == 12 * K * N


def test_walk_visits_bodies():
    assert [op.primitive for op in walk(looping().ops)] == ["scan", "tanh"]


def test_a_workload_of_one_batch_says_so_for_any_other():
    workload = dense(K, N, batch=8)
    workload.check_batch(512)
    single = workload_from_dict(workload_to_dict(workload) | {"batch_exact": True})
    single.check_batch(8)
    with pytest.raises(WorkloadError, match="trace at a local batch of 8 says nothing about 16"):
        single.check_batch(16)
