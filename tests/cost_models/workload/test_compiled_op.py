"""Compiler decisions as plain values."""

import json

import pytest

from cost_models.errors import WorkloadError
from cost_models.workload.compiled_op import Compiled, CompiledCollective
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from tests.builders.workloads import dense

GATHER = CompiledCollective("all_gather", "data", 4, 1, 4096, 2)


@pytest.mark.parametrize(
    "compiled", [Compiled(64), Compiled(1024, 2048, "bfloat16", covers=3), Compiled(0, exchange=GATHER, launches=0)]
)
def test_decisions_survive_json_inside_a_workload(compiled):
    document = workload_to_dict(dense(96, 40))
    document["ops"][1]["compiled"] = compiled.to_dict()
    read = workload_from_dict(json.loads(json.dumps(document)))
    assert read.ops[1].compiled == compiled
    assert read.ops[0].compiled is None
    assert workload_to_dict(read) == document


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moved_bytes": -1}, r"ops\[1\].compiled.moved_bytes: expected `int` >= 0"),
        ({"exchange": {"kind": "all_gather"}}, r"ops\[1\].compiled.exchange: object missing required field `axis`"),
        ({"exchange": GATHER.__class__.__name__}, r"ops\[1\].compiled.exchange: expected `object \| null`, got `str`"),
        ({"colour": 1}, r"ops\[1\].compiled: object contains unknown field `colour`"),
    ],
)
def test_wrong_decisions_are_errors_with_their_path(changes, message):
    document = workload_to_dict(dense(96, 40))
    document["ops"][1]["compiled"] = Compiled(64).to_dict() | changes
    with pytest.raises(WorkloadError, match=message):
        workload_from_dict(document)


def test_decisions_that_are_null_are_an_error():
    document = workload_to_dict(dense(96, 40))
    document["ops"][1]["compiled"] = None
    with pytest.raises(WorkloadError, match=r"ops\[1\].compiled: expected `object`, got `null`"):
        workload_from_dict(document)
