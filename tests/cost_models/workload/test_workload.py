import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cost_models.errors import WorkloadError
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Role, Tensor, UnknownOp, Workload, walk
from tests.builders.workloads import B, Step, dense

ROOT = Path(__file__).resolve().parents[3]
K, N = 96, 40


def looping():
    """A workload with a loop in it, of three iterations."""
    step = Step()
    x = step.input(B, K)
    inner = step.tensor(B, K)
    body = (Op(Kind.ELEMENTWISE, "tanh", (x,), (inner,), flops=Affine(0, K)),)
    out = step.op(Kind.LOOP, (x,), (B, K), primitive="scan", repeat=3, body=body, results=(inner,))
    return step.workload(out, unknown_ops=(UnknownOp("while", 1, "trip count"),), notes=("a note",))


@pytest.mark.parametrize("workload", [dense(K, N), looping()], ids=["dense", "loop"])
def test_a_workload_survives_json(workload):
    again = Workload.from_dict(json.loads(json.dumps(workload.to_dict())))
    assert again == workload
    assert hash(again) == hash(workload)
    assert again.ops == workload.ops
    assert again.tensors == workload.tensors


@pytest.mark.parametrize("workload", [dense(K, N), looping()], ids=["dense", "loop"])
def test_a_digest_outlives_json_and_tells_workloads_apart(workload):
    assert Workload.from_dict(json.loads(json.dumps(workload.to_dict()))).digest() == workload.digest()
    assert replace(workload, ops=workload.ops[:-1]).digest() != workload.digest()
    assert replace(workload, local_batch=9).digest() != workload.digest()


def test_equal_workloads_have_equal_digests_whatever_their_numbers_are_written_as():
    whole, written = (replace(dense(K, N), tensors=(Tensor("float32", (Affine(size),)),), ops=()) for size in (2, 2.0))
    assert whole.digest() == written.digest()


def test_a_digest_is_the_same_in_every_process(tmp_path):
    """Whatever order sets of strings have there."""
    stored = tmp_path / "workload.json"
    stored.write_text(json.dumps(looping().to_dict()))
    code = f"""
import json
from cost_models import Workload
print(Workload.from_dict(json.load(open({str(stored)!r}))).digest())
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {looping().digest()}


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


def test_where_one_batch_alone_is_known_the_scope_tells_an_optimizers_products():
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


def test_another_schema_is_refused():
    data = dense(K, N).to_dict() | {"schema": 99}
    with pytest.raises(WorkloadError, match="schema 99; this version reads schema 1"):
        Workload.from_dict(data)


@pytest.mark.parametrize(
    "change", [{"ops": [{"kind": "nonsense"}]}, {"tensors": [["float32"]]}, {"variables": [["w", "owner", 0, 0]]}]
)
def test_a_damaged_workload_is_one_clear_error(change):
    with pytest.raises(WorkloadError, match="cannot be read"):
        Workload.from_dict(dense(K, N).to_dict() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_batch": 0}, "workload.local_batch is 0; expected a whole number of at least 1; trace"),
        ({"local_batch": "8"}, "workload.local_batch is '8'; expected a whole number; trace"),
        ({"inputs": ["x"]}, r"workload.inputs\[0\] is 'x'; expected a whole number"),
        ({"outputs": [True]}, r"workload.outputs\[0\] is True; expected a whole number"),
        ({"tensors": [["float32", [float("nan")]]]}, r"\[1\]\[0\] is nan; expected a number, or \[fixed, per_sample\]"),
        ({"tensors": [["float32", [[0, float("inf")]]]]}, r"is \[0, inf\]; expected a number, or"),
        ({"tensors": [["float32", [10**400]]]}, "cannot be read: .* is 1000*.*; expected a number"),
        ({"ops": [1]}, r"cannot be read: workload.ops\[0\] is 1; expected a mapping"),
        ({"ops": {}}, "workload.ops is {}; expected a list"),
        ({"notes": "a note"}, "workload.notes is 'a note'; expected a list"),
        ({"colour": 1}, r"workload has an unknown key 'colour'\. Expected: schema"),
    ],
)
def test_what_no_trace_writes_is_one_clear_error(change, message):
    with pytest.raises(WorkloadError, match=message):
        Workload.from_dict(dense(K, N).to_dict() | change)


@pytest.mark.parametrize("data", [None, [], "workload", 3])
def test_what_is_no_mapping_is_no_workload(data):
    with pytest.raises(WorkloadError, match="a workload is a mapping, and this is"):
        Workload.from_dict(data)


def test_a_missing_key_and_a_tensor_out_of_range_are_clear_errors():
    data = dense(K, N).to_dict()
    with pytest.raises(WorkloadError, match="workload lacks ops; expected"):
        Workload.from_dict({key: value for key, value in data.items() if key != "ops"})
    with pytest.raises(WorkloadError, match="names tensor 999, but has"):
        Workload.from_dict(data | {"outputs": [999]})


def test_a_workload_of_one_batch_says_so_for_any_other():
    workload = dense(K, N, batch=8)
    workload.check_batch(512)
    single = Workload.from_dict(workload.to_dict() | {"batch_exact": True})
    single.check_batch(8)
    with pytest.raises(WorkloadError, match="trace at a local batch of 8 says nothing about 16"):
        single.check_batch(16)


def test_phases_and_layers_survive():
    ops = Workload.from_dict(dense(K, N).to_dict()).ops
    assert [op.phase for op in ops] == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2 + [Phase.UPDATE]
    assert {op.layer for op in ops} == {"dense"}
