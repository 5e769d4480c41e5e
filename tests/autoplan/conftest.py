"""Tuning a script on a made-up machine, for whatever is decided on the way."""

from __future__ import annotations

import pytest

from autoplan import planner
from autoplan.jobs import workers
from autoplan.sources import source
from autoplan.tuning.request import TuneRequest
from tests.builders.observations import cluster


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Tune a script on the made-up machine; returns the result, with what was told in `tune.events`."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import keras\nkeras.Model().fit()\n")

    def run(client, *, here=None, **wishes):
        monkeypatch.setattr(workers, "Client", client)
        monkeypatch.setattr(workers.Workers, "cluster", lambda *_: here or cluster())
        run.events = []
        # A database in memory: what is not about studies need not wait for a disk.
        wishes = {
            "study": "sqlite:///:memory:",
            "only": ("batch",),
            "trials": 8,
            "output": tmp_path / "plan.yaml",
        } | wishes
        return planner.tune(TuneRequest(source=source.resolve(str(script)), **wishes), run.events.append)

    return run
