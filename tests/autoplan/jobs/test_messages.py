from __future__ import annotations

import pytest

from autoplan.jobs.messages import Job, JobKind
from cost_models.config import Batch, TrainConfig


def test_a_configuration_without_what_it_changes_is_no_job():
    config = TrainConfig(Batch(8))
    with pytest.raises(ValueError, match="needs the script's own beside it"):
        Job(kind=JobKind.MEASURE, config=config)
    assert Job(kind=JobKind.MEASURE, config=config, baseline=config).config == config
