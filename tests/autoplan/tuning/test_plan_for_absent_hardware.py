from __future__ import annotations

from autoplan.jobs.messages import JobKind
from autoplan.plan.records import Evidence
from tests.builders.observations import cluster
from tests.builders.tune_requests import fake


def test_hardware_that_is_not_here_gives_an_analytic_plan(tune):
    client = fake()
    plan = tune(client, here=cluster(4, kind="tpu", local=False), only=()).plan
    assert plan.evidence is Evidence.ANALYTIC
    assert (plan.measured, plan.verification, plan.trials) == (None, None, [])
    assert plan.predicted.to_dict()["evidence"] == "analytic"
    assert "nothing was measured" in plan.notes[0]
    assert JobKind.MEASURE not in {job.kind for job in client.jobs}


def test_no_measure_gives_an_analytic_plan_here(tune):
    assert tune(fake(), measure=False).plan.evidence is Evidence.ANALYTIC
