"""Workload files that no trace wrote: each is one error of the project's own, or has a price."""

import copy
import json
import random

import pytest

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models import AutoplanError, Batch, Candidates, TrainConfig, Workload, memory, price, step_time
from cost_models.errors import WorkloadError
from cost_models.hardware.lookup import cluster
from tests.builders.workloads import dense
from tests.models import zoo

BATCH = 4
CLUSTERS = ("gpu-a100-80gb", "tpu-v5e-4", "cpu")
MUTATIONS = 120
LEFT_OUT, EXTRA, DOUBLED, REVERSED = "left out", "with one more", "doubled", "reversed"
NUMBERS = (-1, 0, 1, 1.5, 2**53, 10**30, 10**400, 1e308, float("inf"), float("nan"), True)
VALUES = (*NUMBERS, None, "", "x", [], [1, 2], [1, 2, 3], {}, {"a": 1}, LEFT_OUT, EXTRA, DOUBLED, REVERSED)


def plain(build):
    model = build()
    workload = trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
    return json.loads(json.dumps(workload.to_dict()))


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
        node[key]["extra"] = 1
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
    """What every reader of a workload does with it. AutoplanError or a price of sound numbers."""
    workload = Workload.from_dict(document)
    workload.digest()
    config = TrainConfig(Batch(workload.local_batch))
    for name in CLUSTERS:
        there = cluster(name)
        bytes_of = memory(workload, config, there).to_dict()
        seconds = step_time(workload, config, there)
        price([workload], Candidates.of([config]), there)
        assert min(bytes_of.values()) >= 0, bytes_of
        assert 0 < seconds.micro_step_seconds < float("inf"), seconds


@pytest.mark.parametrize("build", [zoo.mlp, zoo.image_classifier, zoo.recurrent, zoo.two_inputs])
def test_a_mutated_workload_is_refused_in_words_or_has_a_price(build):
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
    document = dense(96, 40).to_dict()
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
        (changed_op(1, reads=[4]), "max of dense reads tensor 4, which is made later; expected the program's order"),
        (changed_op(1, reads=[3]), "max of dense reads tensor 3, which is made later"),
        (changed_op(0, flops=-1), "dot_general of dense does a negative number of operations; expected none or more"),
        (changed_op(0, flops=1e29), r"takes 1e\+29 floating-point operations; expected less than 1e\+27"),
        (changed_op(1, kind="max"), r"ops\[1\].kind is 'max'; expected one of dot, conv, "),
        (
            dense(96, 40).to_dict() | {"tensors": [["float32", [0.5]]] * 9},
            r"tensors\[0\] has the shape \(0.5\); expected",
        ),
        (dense(96, 40).to_dict() | {"tensors": [["float32", [2**62]]] * 9}, "take .* bytes; expected less than"),
        (dense(96, 40).to_dict() | {"tensors": [["float7", [2]]] * 9}, "dtype 'float7' has no known size"),
        (
            dense(96, 40).to_dict() | {"variables": [["w", "trainable", 0]]},
            r"variables\[0\] is .*; expected a list of 4",
        ),
    ],
)
def test_what_pricing_takes_for_granted_is_checked_and_said(document, message):
    with pytest.raises(WorkloadError, match=message):
        Workload.from_dict(document)


def test_bodies_in_bodies_without_end_are_refused():
    document = dense(96, 40).to_dict()
    inner = document["ops"][1]
    for _ in range(200):
        inner = {"kind": "loop", "primitive": "scan", "phase": "forward", "reads": [], "writes": [3], "body": [inner]}
    with pytest.raises(WorkloadError, match="lies in more than 32 bodies; expected fewer"):
        Workload.from_dict(document | {"ops": [inner]})


def test_an_operation_of_constants_alone_has_a_price():
    """JAX leaves `max` of two numbers in the program: such an operation reads nothing."""
    has_a_price(changed_op(1, reads=[]))


def test_a_step_without_operations_has_a_price():
    has_a_price(dense(96, 40).to_dict() | {"ops": []})
