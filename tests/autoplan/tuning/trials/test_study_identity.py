from __future__ import annotations

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.runner import JobRunner
from autoplan.sources.source import SourceSpec
from autoplan.tuning.estimates.estimator import estimate_space
from autoplan.tuning.space.legal_configs import legal_configs
from autoplan.tuning.trials.storage import differences
from autoplan.tuning.trials.study_identity import identity, known_at_once, stem
from cost_models.config import Batch
from tests.builders.fake_client import FakeClient
from tests.builders.observations import VERSIONS, cluster, observation

SOURCE = SourceSpec(kind="script", path="models/train.py", sha256="0" * 64, args=["--small"])


def made(source=SOURCE, here=None, only=("batch",), **facts):
    client, here = FakeClient(observation(**facts)), here or cluster()
    space = legal_configs(client.facts, here, VERSIONS, only=only)
    jobs = JobRunner(client, source, "jax", here, Clock.start(None), baseline=space.baseline)
    return jobs, estimate_space(jobs, client.facts, space, VERSIONS, headroom=0.08, remat_asked=False)


@pytest.mark.parametrize(
    "other",
    [
        {"source": SOURCE.model_copy(update={"sha256": "1" * 64})},
        {"source": SOURCE.model_copy(update={"args": ["--large"]})},
        {"source": SOURCE.model_copy(update={"function": "build_another"})},
        {"source": SOURCE.model_copy(update={"fit_index": 2})},
        {"here": cluster(usable_bytes=2**30)},
        {"here": cluster(2)},
        {"only": ("batch", "precision")},
        {"structure": "1" * 64},
        {"environment": {**observation().environment, "keras": "3.16.0"}},
    ],
)
def test_figures_of_something_else_are_other_figures(other):
    assert identity(*made(**other)) != identity(*made())
    assert identity(*made()) == identity(*made())


def test_what_is_known_before_the_source_ran_is_part_of_it():
    jobs, findings = made()
    known = known_at_once(jobs)
    assert known.items() <= identity(jobs, findings).items()
    assert (known["arguments"], known["devices"]) == (["--small"], 1)


def test_settings_that_change_programs_are_part_of_it(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = known_at_once(made()[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert differences(before, known_at_once(made()[0])) == [
        "settings.XLA_FLAGS: not set -> --xla_cpu_enable_fast_math=true"
    ]


def test_the_baseline_has_the_wording_that_stored_studies_have():
    own = observation().config
    jobs, findings = made(config=own.with_(batch=Batch(16, accumulation=4), keep_freed_memory=True))
    assert identity(jobs, findings)["baseline"] == "float32, batch 16x4, freed memory kept"


def test_a_study_is_named_after_its_source():
    assert stem(SOURCE) == "train"
