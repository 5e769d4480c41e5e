"""Calls of batch hooks per epoch and per fit, by hand."""

import pytest

from autoplan.plan.callback_calls import BatchCallback, Calls, calls_per_script_call, micro_steps_per_epoch
from cost_models.config import Batch
from tests.builders.observations import config

COUNTER = BatchCallback(name="Counter")
STOPS = BatchCallback(name="MaxSteps", changes=["stop_training"])


def calls(script, wanted, *, samples=1024, epochs=10, counted=False):
    steps = None if samples is None else -(-samples // script.batch.global_size)
    return Calls.between(script, wanted, samples=samples, micro_steps=steps, counted=counted, epochs=epochs)


@pytest.mark.parametrize(
    ("script", "wanted", "group"),
    [
        (config(64), config(64), 1),
        (config(64), config(32, 2), 2),
        (config(64), config(8, 8, steps_per_execution=8), 1),  # as many calls, each after one update
        (config(32, 4, steps_per_execution=4), config(128), 1),
        (config(32, 4), config(16, 8), 2),
        (config(32, 4), config(128), None),
        (config(64), config(64, steps_per_execution=8), None),
        (config(96), config(64), None),
    ],
)
def test_calls_of_keras_that_make_up_one_of_the_script(script, wanted, group):
    assert calls_per_script_call(script, wanted) == group


@pytest.mark.parametrize(
    ("samples", "wanted", "micro_steps"),
    [
        (1024, Batch(32, accumulation=2), 32),
        (1000, Batch(32, accumulation=2), 32),  # 15 updates of 64 samples, and one of 40 in two micro-steps
        (961, Batch(32, accumulation=2), 30),  # the last sample does not divide over two micro-steps
        (1000, Batch(128), 8),
        (None, Batch(32, accumulation=2), None),
    ],
)
def test_micro_steps_of_an_epoch(samples, wanted, micro_steps):
    steps = None if samples is None else -(-samples // 64)
    assert micro_steps_per_epoch(samples, steps, Batch(64), wanted, counted=False) == micro_steps


def test_micro_steps_that_the_script_counts():
    assert micro_steps_per_epoch(None, 10, Batch(64), Batch(16, accumulation=4), counted=True) == 40


def test_nothing_is_said_where_hooks_are_called_as_often():
    script = config(32, 4, steps_per_execution=4)
    found = calls(script, config(128), samples=2048, epochs=2)
    assert (found.own, found.plan, found.describe([COUNTER])) == (16, 16, "")
    assert calls(config(64), config(32, 2)).describe([]) == ""


def test_more_calls_are_joined_to_those_of_the_script():
    assert calls(config(64), config(32, 2)).describe([STOPS]) == (
        "batch hooks of MaxSteps (changes the training: stop_training): `autoplan train` and `autoplan.fit` call them "
        "as often as in the script (16 times per epoch, 160 per fit); in a script that sets the plan's batch itself, "
        "they are called 32 times per epoch, 320 per fit"
    )


def test_fewer_calls_mean_other_samples():
    assert calls(config(64), config(64, steps_per_execution=8)).describe([COUNTER]) == (
        "batch hooks of Counter are called 2 times per epoch, 20 per fit instead of 16 times per epoch, 160 per fit in "
        "the script; a count of their own then covers another number of samples"
    )
    assert (
        calls(config(64), config(64, steps_per_execution=8))
        .describe([STOPS, COUNTER])
        .endswith("another number of samples, and what they change is changed after other samples")
    )


def test_counts_of_callbacks_of_keras_are_converted():
    saves = BatchCallback(name="ModelCheckpoint", own=False, count="save_freq=100")
    found = calls(config(64), config(64, steps_per_execution=8))
    assert found.describe([saves]) == (
        "`autoplan train` and `autoplan.fit` convert the count of ModelCheckpoint (save_freq=100) to the same samples"
    )
    assert found.describe([COUNTER, saves]).startswith("batch hooks of Counter are called 2 times per epoch")
    assert "batch hooks of ModelCheckpoint: `autoplan" in calls(config(64), config(32, 2)).describe([saves])


def test_calls_of_an_epoch_of_unknown_length_are_a_ratio():
    assert "Counter are called 0.125 times as often; a count" in (
        calls(config(64), config(64, steps_per_execution=8), samples=None).describe([COUNTER])
    )
    assert "as often as in the script; in a script that sets the plan's batch itself, they are called 4 times as" in (
        calls(config(64), config(16, 4), samples=None).describe([COUNTER])
    )
