from __future__ import annotations

import pytest

from autoplan.jobs.messages import Job, JobKind, SplitProbe
from cost_models.config import Batch, TrainConfig
from tests.builders.observations import observation


def test_a_configuration_without_what_it_changes_is_no_job():
    config = TrainConfig(Batch(8))
    with pytest.raises(ValueError, match="needs the script's own beside it"):
        Job(kind=JobKind.MEASURE, config=config)
    assert Job(kind=JobKind.MEASURE, config=config, baseline=config).config == config


def test_samples_are_left_out_where_a_remainder_is_neither_padded_nor_divided():
    facts, wanted = observation(samples=326, batch_norm=True), TrainConfig(Batch(16, accumulation=4))
    assert facts.samples_left_out(wanted) == 326 % 64 % 4 == 2
    assert facts.samples_left_out(facts.config) == 0
    assert observation(samples=326).samples_left_out(wanted) == 0


@pytest.mark.parametrize(("epochs", "left_out"), [(2, 0), (3, 2)])
def test_samples_are_left_out_of_counted_steps_if_these_reach_the_end_of_the_data(epochs, left_out):
    steps = {"explicit_steps_per_epoch": True, "steps_per_epoch": 2, "epochs": epochs}
    facts, wanted = observation(samples=326, batch_norm=True, **steps), TrainConfig(Batch(16, accumulation=4))
    assert facts.config.batch == Batch(64)
    assert facts.samples_left_out(wanted) == left_out
    assert facts.model_copy(update={"data": "generator"}).samples_left_out(wanted) == 0


def test_facts_found_by_a_probe_replace_those_by_name():
    named = observation(random_layers=True, batch_norm=True, masks=True)
    assert (named.draws_random_numbers, named.takes_batch_statistics, named.can_pad) == (True, True, False)
    probed = named.model_copy(update={"probe": SplitProbe(split="same", padding="same")})
    assert (probed.draws_random_numbers, probed.takes_batch_statistics, probed.can_pad) == (False, False, True)
    failed = named.model_copy(update={"probe": SplitProbe(ran=False)})
    assert (failed.draws_random_numbers, failed.takes_batch_statistics, failed.can_pad) == (True, True, False)
    found = observation(probe=SplitProbe(random_draws=["noise"], batch_statistics=["norm"], padding="differs"))
    assert (found.draws_random_numbers, found.takes_batch_statistics, found.can_pad) == (True, True, False)
