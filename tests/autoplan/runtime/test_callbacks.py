"""Callbacks of a script in trials and under another batch."""

import types

import keras
import pytest

from autoplan.runtime import callbacks
from tests.builders.observations import config


class EveryMicroStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)


class MetricLogger(EveryMicroStep):
    pass


class OwnCSVLogger(keras.callbacks.CSVLogger):
    pass


class Sends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        wandb.log(logs)


wandb = types.ModuleType("wandb")


@pytest.mark.parametrize(
    ("callback", "known", "timed"),
    [
        (keras.callbacks.ModelCheckpoint("x.keras"), True, False),
        (keras.callbacks.CSVLogger("x.csv"), True, False),
        (keras.callbacks.BackupAndRestore("x"), True, False),
        (OwnCSVLogger("x.csv"), True, False),
        (Sends(), True, False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: wandb.log(logs)), True, False),
        (MetricLogger(), False, True),
        (keras.callbacks.EarlyStopping(), False, False),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), False, False),
        (EveryMicroStep(), False, True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), False, True),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False, False),
    ],
)
def test_trials_run_callbacks_with_micro_step_hooks_that_are_not_known_to_write(callback, known, timed):
    assert callbacks.known_writer(callback) is known
    assert callbacks.runs_in_trials(callback) is timed


@pytest.mark.parametrize(
    ("callback", "saved"),
    [
        (keras.callbacks.ModelCheckpoint("x.keras"), "checkpoint"),
        (keras.callbacks.ModelCheckpoint("x.weights.h5", save_weights_only=True), "weights"),
        (EveryMicroStep(), None),
    ],
)
def test_checkpoints_of_models_and_of_weights_are_distinguished(callback, saved):
    assert callbacks.saved_part(callback) == saved


def test_counts_are_kept_where_hooks_are_called_as_in_the_script():
    checkpoint = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    with callbacks.adapted([checkpoint], config(32), config(8, 4), micro_steps=4) as lines:
        assert (checkpoint.save_freq, lines) == (10, [])
    with callbacks.adapted(None, config(32), config(8, 4)) as lines:
        assert lines == []


def test_counts_fall_on_the_same_samples_elsewhere():
    checkpoint = keras.callbacks.ModelCheckpoint("x.keras", save_freq=100)
    board = keras.callbacks.TensorBoard("x", update_freq=100)
    by_epoch = keras.callbacks.ModelCheckpoint("y.keras")
    listed = [checkpoint, board, by_epoch]
    with callbacks.adapted(listed, config(32, 4), config(64, 2)) as lines:
        assert (checkpoint.save_freq, board.update_freq, by_epoch.save_freq) == (50, 50, "epoch")
    assert lines == [
        "ModelCheckpoint.save_freq: 100 -> 50 micro-steps",
        "TensorBoard.update_freq: 100 -> 50 micro-steps",
    ]
    # An index of Keras covers all micro-steps of an execution; TensorBoard counts executions.
    with callbacks.adapted(listed, config(32), config(32, steps_per_execution=4)):
        assert (checkpoint.save_freq, board.update_freq) == (100, 25)
    assert (checkpoint.save_freq, board.update_freq) == (100, 100)


class Stops(EveryMicroStep):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_callbacks_with_batch_hooks_are_observed():
    listed = [
        Stops(),
        EveryMicroStep(),
        keras.callbacks.ModelCheckpoint("x.keras", save_freq=10),
        keras.callbacks.ModelCheckpoint("x.keras"),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.TerminateOnNaN(),
    ]
    found = callbacks.batch_callbacks(listed)
    assert [(one.name, one.own, one.count, one.changes) for one in found] == [
        ("Stops", True, "", ["stop_training"]),
        ("EveryMicroStep", True, "", []),
        ("ModelCheckpoint", False, "save_freq=10", []),
    ]


def test_callbacks_that_were_seen_to_write_do_not_run():
    first, second = EveryMicroStep(), EveryMicroStep()
    assert callbacks.trial_callbacks({"callbacks": [first, second]}, left_out={0}) == [second]


def test_callbacks_in_trials_have_the_scripts_own_number_of_epochs():
    one = EveryMicroStep()
    assert callbacks.trial_callbacks({"callbacks": [keras.callbacks.EarlyStopping(), one], "epochs": 7}) == [one]
    keras.callbacks.CallbackList([one], epochs=10**9, steps=3)
    assert one.params["epochs"] == 7
    assert one.params["steps"] == 3


def test_callbacks_in_trials_are_called_as_in_the_script():
    one = EveryMicroStep()
    for _ in range(2):  # a trial may ask twice
        (found,) = callbacks.trial_callbacks(
            {"callbacks": [one], "epochs": 7}, change=(config(32), config(8, 4)), micro_steps=16
        )
    found.set_params({"steps": 64, "epochs": 10**9})
    assert found.params == {"steps": 16, "epochs": 7}
    calls = []
    one.on_batch_end = lambda batch, logs: calls.append(batch)
    for batch in range(8):
        found.on_train_batch_end(batch, {})
    assert calls == [0, 1]
    callbacks.trial_callbacks({"callbacks": [one], "epochs": 7})
    for batch in range(2):
        found.on_train_batch_end(batch, {})
    assert calls == [0, 1, 0, 1]
