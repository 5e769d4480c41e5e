from __future__ import annotations

import pytest

from autoplan.sources.source import SourceSpec
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.result.provenance import source_record
from tests.builders.observations import cluster, observation
from tests.builders.plan_decisions import OWN, WINNER, decide, verified


def test_the_plan_says_what_it_is_of():
    plan = decide([verified(WINNER)], samples=1000, epochs=4, steps_per_epoch=32)
    assert (plan.source.kind, plan.source.args, plan.source.fit.index) == ("script", ["--fast"], 2)
    assert (plan.source.fit.samples, plan.source.fit.epochs) == (1000, 4)
    assert plan.source.fit.updates == 32 * 4 // 8
    assert (plan.hardware.name, plan.hardware.kind, plan.hardware.devices) == ("a machine", "cpu", 1)
    assert plan.hardware.capacity_bytes == cluster().chip.usable_memory_bytes
    assert plan.environment.keras == "3.15.1"
    assert [one.number for one in plan.trials] == [0, 1, 2]
    assert "trials ended: all 3 trials are done" in plan.notes


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"kind": "script", "path": "train.py"}, "train.py"),
        ({"kind": "script", "path": "train.py", "module": "package.train"}, "-m package.train"),
        ({"kind": "builder", "path": "model.py", "function": "build_model"}, "model.py"),
        ({"kind": "builder", "path": "model.py", "function": "make"}, "model.py:make"),
        ({"kind": "builder", "module": "package.model", "function": "make"}, "package.model:make"),
    ],
)
def test_a_source_is_named_as_autoplan_train_reads_it(source, path):
    request = TuneRequest(SourceSpec(**{"path": "", "sha256": "0" * 64, **source}))
    assert source_record(request, observation(OWN)).path == path
