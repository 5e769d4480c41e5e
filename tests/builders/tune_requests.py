"""Requests to tune on the made-up machine (the fixture `tune`): a batch that is split into too many pieces."""

from __future__ import annotations

from autoplan.jobs.messages import JobKind
from tests.builders.fake_client import FakeClient
from tests.builders.observations import config, observation

OWN = config(32, 8)
BEST = config(256)


def fake(own=OWN, **changes):
    facts = changes.pop("facts", {})
    return FakeClient(facts=observation(own, **facts), **changes)


def tried(result):
    return [record.config for record in result.plan.trials]


def interrupting(after, *, kind=JobKind.MEASURE, times=1):
    """Ctrl-C in the job of this kind that follows `after` others."""
    seen = []

    def plant(job):
        if job.kind is kind:
            seen.append(job)
            if after < len(seen) <= after + times:
                raise KeyboardInterrupt
        return

    return plant
