"""Workload files that no trace wrote: each is one error of the project's own, or has a price."""

import copy
import gc
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models import AutoplanError, Batch, Candidates, TrainConfig, memory, price, step_time
from cost_models.errors import WorkloadError
from cost_models.hardware.lookup import cluster
from cost_models.workload.affine import Affine
from cost_models.workload.serialization import workload_digest, workload_from_dict, workload_to_dict
from cost_models.workload.workload import OtherBatch, Phase, Tensor
from tests.builders.slow import slow
from tests.builders.workloads import dense, looping
from tests.models import zoo

BATCH = 4
K, N = 96, 40
DENSE = dense(K, N)
ROOT = Path(__file__).resolve().parents[3]
CLUSTERS = ("gpu-a100-80gb", "tpu-v5e-4", "cpu")
MUTATIONS = 120
LEFT_OUT, EXTRA, DOUBLED, REVERSED = "left out", "with one more", "doubled", "reversed"
NUMBERS = (-1, 0, 1, 1.5, 2**53, 10**30, 10**400, 1e308, float("inf"), float("nan"), True)
VALUES = (*NUMBERS, None, "", "x", [], [1, 2], [1, 2, 3], {}, {"a": 1}, LEFT_OUT, EXTRA, DOUBLED, REVERSED)


@pytest.mark.parametrize("workload", [dense(K, N), looping()], ids=["dense", "loop"])
def test_a_workload_survives_json(workload):
    again = workload_from_dict(json.loads(json.dumps(workload_to_dict(workload))))
    assert again == workload


def test_programs_on_other_batches_survive_json():
    workload = replace(DENSE, largest=OtherBatch(dense(2 * K, N), 64, 32), validation=OtherBatch(looping(), 4096))
    again = workload_from_dict(json.loads(json.dumps(workload_to_dict(workload))))
    assert again == workload
    assert again != DENSE
    assert again.validation.usual is None
    assert hash(again) == hash(workload)
    assert again.ops == workload.ops
    assert again.tensors == workload.tensors


@pytest.mark.parametrize("workload", [dense(K, N), looping()], ids=["dense", "loop"])
def test_a_digest_survives_json_and_differs_between_workloads(workload):
    assert workload_digest(workload_from_dict(json.loads(json.dumps(workload_to_dict(workload))))) == workload_digest(
        workload
    )
    assert workload_digest(replace(workload, ops=workload.ops[:-1])) != workload_digest(workload)
    assert workload_digest(replace(workload, local_batch=9)) != workload_digest(workload)


def test_equal_workloads_have_equal_digests_whatever_their_numbers_are_written_as():
    whole, written = (replace(dense(K, N), tensors=(Tensor("float32", (Affine(size),)),), ops=()) for size in (2, 2.0))
    assert workload_digest(whole) == workload_digest(written)


def test_a_digest_is_the_same_in_every_process(tmp_path):
    """Whatever order sets of strings have there."""
    stored = tmp_path / "workload.json"
    stored.write_text(json.dumps(workload_to_dict(looping())))
    code = f"""
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from cost_models.workload.serialization import workload_digest, workload_from_dict
print(workload_digest(workload_from_dict(json.load(open({str(stored)!r})))))
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
    assert found == {workload_digest(looping())}


def test_another_schema_is_refused():
    data = workload_to_dict(dense(K, N)) | {"schema": 99}
    with pytest.raises(WorkloadError, match="schema 99; this version reads schema 1"):
        workload_from_dict(data)


@pytest.mark.parametrize(
    "change", [{"ops": [{"kind": "nonsense"}]}, {"tensors": [["float32"]]}, {"variables": [["w", "owner", 0, 0]]}]
)
def test_a_damaged_workload_is_one_clear_error(change):
    with pytest.raises(WorkloadError, match="cannot be read"):
        workload_from_dict(workload_to_dict(dense(K, N)) | change)


def tensor(dim):
    """One more tensor, with this dimension."""
    return {"tensors": [*workload_to_dict(DENSE)["tensors"], ["float32", [dim]]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_batch": 0}, "workload.local_batch: expected `int` >= 1; trace"),
        ({"local_batch": "8"}, "workload.local_batch: expected `int`, got `str`; trace"),
        ({"dispatches": 2**53}, "workload.dispatches: expected `int` <= 9007199254740991"),
        ({"inputs": ["x"]}, r"workload.inputs\[0\]: expected `int`, got `str`"),
        ({"outputs": [True]}, r"workload.outputs\[0\]: expected `int`, got `bool`"),
        (tensor(float("nan")), r"workload.tensors\[8\] has the size nan; expected a number, or \[fixed, per_sample\]"),
        (tensor([0, float("inf")]), r"has the size \(0, inf\); expected a number, or"),
        (tensor(10**400), r"cannot be read: .* size 1000*.*; expected a number"),
        (tensor("8"), r"workload.tensors\[8\]\[1\]\[0\]: expected `int | float | array`, got `str`"),
        ({"ops": [1]}, r"cannot be read: workload.ops\[0\]: expected `object`, got `int`"),
        ({"ops": {}}, "workload.ops: expected `array`, got `object`"),
        ({"notes": "a note"}, "workload.notes: expected `array`, got `str`"),
        ({"colour": 1}, "workload: object contains unknown field `colour`"),
    ],
)
def test_values_that_no_trace_writes_are_errors_with_their_path(change, message):
    with pytest.raises(WorkloadError, match=message):
        workload_from_dict(workload_to_dict(dense(K, N)) | change)


@pytest.mark.parametrize("data", [None, [], "workload", 3])
def test_a_workload_that_is_no_mapping_is_an_error(data):
    with pytest.raises(WorkloadError, match="a workload is a mapping, and this is"):
        workload_from_dict(data)


def test_a_missing_key_and_a_tensor_out_of_range_are_clear_errors():
    data = workload_to_dict(dense(K, N))
    with pytest.raises(WorkloadError, match="workload: object missing required field `ops`"):
        workload_from_dict({key: value for key, value in data.items() if key != "ops"})
    with pytest.raises(WorkloadError, match="names tensor 999, but has"):
        workload_from_dict(data | {"outputs": [999]})


def test_phases_and_layers_survive():
    ops = workload_from_dict(workload_to_dict(dense(K, N))).ops
    assert [op.phase for op in ops] == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2 + [Phase.UPDATE]
    assert {op.layer for op in ops} == {"dense"}


def plain(build):
    model = build()
    workload = trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
    return json.loads(json.dumps(workload_to_dict(workload)))


def places(node, place=()):
    """The place of every value; of many alike in a list, the first few."""
    yield place
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*place, key))
    elif isinstance(node, list):
        for at in chosen(node):
            yield from places(node[at], (*place, at))


def chosen(items):
    """One item of each kind that operations, tensors and variables are of."""
    kinds = {}
    for at, item in enumerate(items):
        if isinstance(item, dict):
            kind = (item.get("kind"), item.get("primitive"), "gemm" in item)
        else:
            kind = (type(item), isinstance(item, list) and len(item), str(item)[-12:] if isinstance(item, list) else at)
        kinds.setdefault(kind, at)
    return list(kinds.values())[:40]


def mutated(document, place, value):
    """A copy with another value at one place; None where the value makes no sense there."""
    changed = node = copy.copy(document)
    for key in place[:-1]:
        node[key] = copy.copy(node[key])
        node = node[key]
    key = place[-1]
    if value == LEFT_OUT:
        del node[key]
    elif value == EXTRA and isinstance(node[key], dict):
        node[key] = node[key] | {"extra": 1}
    elif value in (EXTRA, DOUBLED, REVERSED):
        if not isinstance(node[key], list):
            return None
        node[key] = {EXTRA: [*node[key], "extra"], DOUBLED: node[key] * 2, REVERSED: node[key][::-1]}[value]
    else:
        node[key] = value
    return changed


def mutations(document):
    """Some of all, the same ones each time."""
    every = [(place, value) for place in places(document) if place for value in VALUES]
    return random.Random(0).sample(every, MUTATIONS)


def has_a_price(document):
    """Do what every user of a workload does. Raises AutoplanError, or the price has valid numbers."""
    workload = workload_from_dict(document)
    workload_digest(workload)
    config = TrainConfig(Batch(workload.local_batch))
    for name in CLUSTERS:
        there = cluster(name)
        bytes_of = memory(workload, config, there).to_dict()
        seconds = step_time(workload, config, there)
        price([workload], Candidates.of([config]), there)
        assert min(bytes_of.values()) >= 0, bytes_of
        assert 0 < seconds.micro_step_seconds < float("inf"), seconds


@pytest.mark.parametrize("build", [zoo.mlp, zoo.recurrent, *slow(zoo.image_classifier, zoo.two_inputs)])
def test_a_mutated_workload_is_refused_with_a_message_or_has_a_price(build):
    document = plain(build)
    has_a_price(document)
    faults, refused = [], []
    for place, value in mutations(document):
        changed = mutated(document, place, value)
        if changed is None:
            continue
        try:
            has_a_price(changed)
        except AutoplanError as error:
            refused.append(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
            faults.append((place, str(value)[:20], repr(error)[:200]))
    assert not faults
    assert len(refused) > MUTATIONS / 3
    assert max(map(len, refused)) < 1000


def changed_op(number, **changes):
    """`dense`, with one operation that says something else."""
    document = workload_to_dict(DENSE)
    document["ops"][number] |= changes
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed_op(0, reads=[1]), "dot_general of dense reads 1 tensors and writes 1; expected at least 2 and 1"),
        (changed_op(1, writes=[]), "max of dense reads 1 tensors and writes 0; expected at least 0 and 1"),
        (changed_op(0, gemm=[1, 2, 3]), "dot_general of dense has 3 sizes of a matrix product; expected 4"),
        (changed_op(1, gemm=[1, 2, 3, 4]), "max of dense has 4 sizes of a matrix product; expected 0"),
        (changed_op(0, kind="conv", writes=[4]), "has operands of 2 and 2 and 0 dimensions; expected as many in each"),
        (changed_op(1, reads=[4]), "max of dense reads tensor 4, which is made later"),
        (changed_op(1, reads=[3]), "max of dense reads tensor 3, which is made later"),
        (changed_op(0, flops=-1), "dot_general of dense does a negative number of operations; expected none or more"),
        (changed_op(0, flops=1e29), r"takes 1e\+29 floating-point operations; expected less than 1e\+27"),
        (changed_op(1, kind="max"), r"workload.ops\[1\].kind: invalid enum value 'max'"),
        (
            workload_to_dict(DENSE) | {"tensors": [["float32", [0.5]]] * 9},
            r"tensors\[0\] has the shape \(0.5\); expected",
        ),
        (
            workload_to_dict(DENSE) | {"tensors": [["float32", [2**62]]] * 9},
            "take .* bytes; expected less than",
        ),
        (workload_to_dict(DENSE) | {"tensors": [["float7", [2]]] * 9}, "dtype 'float7' has no known size"),
        (
            workload_to_dict(DENSE) | {"variables": [["w", "trainable", 0]]},
            r"workload.variables\[0\]: expected `array` of length 4, got 3",
        ),
    ],
)
def test_assumptions_of_pricing_are_checked(document, message):
    with pytest.raises(WorkloadError, match=message):
        workload_from_dict(document)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_before_after_reading(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        workload_from_dict(workload_to_dict(DENSE))
        with pytest.raises(WorkloadError):
            workload_from_dict(workload_to_dict(DENSE) | {"ops": 3})
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_bodies_in_bodies_without_end_are_refused():
    document = workload_to_dict(DENSE)
    inner = document["ops"][1]
    for _ in range(200):
        inner = {"kind": "loop", "primitive": "scan", "phase": "forward", "reads": [], "writes": [3], "body": [inner]}
    with pytest.raises(WorkloadError, match="lies in more than 32 bodies; expected fewer"):
        workload_from_dict(document | {"ops": [inner]})


def test_an_operation_of_constants_alone_has_a_price():
    """JAX leaves `max` of two numbers in the program: such an operation reads nothing."""
    has_a_price(changed_op(1, reads=[]))


def test_a_step_without_operations_has_a_price():
    has_a_price(workload_to_dict(DENSE) | {"ops": []})
