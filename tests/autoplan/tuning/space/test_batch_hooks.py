"""Configurations under which callbacks would act at other samples."""

import pytest

from autoplan.plan.callback_calls import calls_per_script_call
from autoplan.tuning.space.batch_hooks import without_lost_calls
from autoplan.tuning.space.legal_configs import legal_configs
from tests.builders.observations import VERSIONS, cluster, config, observation

STOPS = {"name": "MaxSteps", "changes": ["stop_training"]}
OWN = config(64, 4)
SPLIT, FEWER, EXECUTED = config(16, 16), config(256), config(64, 4, steps_per_execution=8)
BOTH = config(256, steps_per_execution=8)


def kept(fixed=(), *, callback=STOPS, batch_is_free=False):
    seen = observation(OWN, batch_callbacks=[callback])
    listed = [OWN, SPLIT, FEWER, EXECUTED, BOTH]
    return without_lost_calls(listed, seen, dict.fromkeys(fixed), batch_is_free=batch_is_free)


@pytest.mark.parametrize(
    ("fixed", "free", "configs"),
    [
        ((), False, [OWN, SPLIT]),
        (("steps_per_execution",), False, [OWN, SPLIT, EXECUTED]),
        (("accumulation",), False, [OWN, SPLIT, FEWER]),
        ((), True, [OWN, SPLIT, FEWER]),
        (("accumulation", "steps_per_execution"), False, [OWN, SPLIT, FEWER, EXECUTED, BOTH]),
    ],
)
def test_fewer_calls_of_a_callback_that_changes_the_training_must_be_asked_for(fixed, free, configs):
    assert kept(fixed, batch_is_free=free)[0] == configs


def test_the_callback_is_named_as_the_reason():
    (rejection,) = kept()[1]
    assert rejection.reason.startswith(
        "batch hooks of MaxSteps (changes the training: stop_training): with fewer calls"
    )
    assert (rejection.config, rejection.figures) == (FEWER, {"configurations": 3})


def test_a_callback_that_only_looks_limits_nothing():
    assert kept(callback={"name": "Counter"}) == ([OWN, SPLIT, FEWER, EXECUTED, BOTH], [])


@pytest.mark.parametrize("changes", [["learning_rate"], []])
def test_fewer_calls_are_not_tuned_where_a_callback_sets_the_learning_rate(changes):
    own = config(64, backend="tensorflow")
    seen = observation(own, batch_callbacks=[{"name": "OneCycle", "changes": changes}])
    found = legal_configs(seen, cluster(), VERSIONS).configs
    assert any(calls_per_script_call(own, one) is None for one in found) is not bool(changes)
    assert len({one.batch.accumulation for one in found}) > 1
    assert {one.steps_per_execution for one in found} == {1, 8, 32}  # 8 micro-steps that are one update, for example
