from __future__ import annotations

import pytest

from autoplan.plan import knobs
from autoplan.tuning.space.legal_values import Situation
from autoplan.tuning.space.limits import Limits
from autoplan.tuning.space.refusals import accumulation_is_held, no_batch
from cost_models.config import Batch
from tests.builders.observations import cluster, config, observation

ALL = frozenset(knobs.tunable_fields())


def test_micro_steps_are_not_counted_for_the_optimizers_of_a_models_own_train_step():
    assert accumulation_is_held(observation(own_optimizers=["d_optimizer"]))
    assert accumulation_is_held(observation(ema=True))
    assert not accumulation_is_held(observation(rebatchable=False, why_fixed_batch="the loss is a sum"))


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"global": 48}, "--fix batch.global=48: no batch of this training can be split like this with an effective "),
        ({"global": 16, "accumulation": 2}, "legal values are global: 32; accumulation: 4"),
        ({"global": 5, "accumulation": 3}, "legal values are global: 16, 32, 64; accumulation: 1, 2, 4"),
    ],
)
def test_sizes_that_do_not_go_together_are_told_with_the_values_that_do(fixed, told):
    every = [Batch(64), Batch(32, accumulation=2), Batch(16, accumulation=4)]
    where = Situation(observation(), config(64), cluster())
    assert told in no_batch(every, where, [1], Limits(fixed, ALL, None), lambda axis: True)


def test_only_data_axes_that_split_the_batch_are_advised():
    where = Situation(observation(), config(30), cluster(8))
    told = no_batch([], where, [8], Limits({"data": 8}, ALL, None), lambda axis: axis == 2)
    assert "--fix mesh=data=2 or --effective-batch 32" in told
    assert "mesh=data=1" not in told
