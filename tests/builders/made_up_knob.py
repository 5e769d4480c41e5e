"""A program that uses a knob which autoplan does not have: it runs on a copy of the packages that has been given one.

It tunes a real script on a made-up machine that is faster with more prefetched batches, and writes the plan. Arguments:
the script and the plan to write. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autoplan import planner
from autoplan.jobs import workers
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.plan import file
from autoplan.sources import source
from autoplan.tuning.request import TuneRequest
from tests.builders.fake_client import FakeClient, micro_step_seconds
from tests.builders.observations import cluster


def main(script: str, output: Path) -> None:
    spec = source.resolve(script)
    with Client("jax") as client:
        observed = client.run(Job(kind=JobKind.OBSERVE, source=spec), time_limit_seconds=120)
    made_up = FakeClient(
        Observation.model_validate(observed.value),
        seconds=lambda config: micro_step_seconds(config) / config.prefetched,
    )
    workers.Client, workers.Workers.cluster = made_up, lambda *_: cluster()

    def tune(**wishes):
        request = TuneRequest(source=spec, backend="jax", study="sqlite:///:memory:", output=output, **wishes)
        planner.tune(request)
        return file.read(output)

    fixed = tune(fix={"prefetched": "2"}, only=("jit_compile",), trials=2)
    searched = tune(only=("prefetched",), trials=4)
    sys.stdout.write(
        json.dumps(
            {
                "tried": [one.config.prefetched for one in searched.trials],
                "chosen": searched.config.prefetched,
                "fixed": sorted({one.config.prefetched for one in fixed.trials}),
                "own": searched.baseline.config.prefetched,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
