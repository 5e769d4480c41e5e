"""What batch hooks of callbacks change, and code that counts micro-steps."""

import functools

import keras
import pytest

from autoplan.runtime.user_code.batch_hooks import changed_by, counts_micro_steps, has_batch_hooks, has_own_batch_hooks


class Stops(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen >= 40:
            self.model.stop_training = True


class Counts(keras.callbacks.Callback):
    """Counts in its batch hook, and stops in another one."""

    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        self.rate_now = float(self.model.optimizer.learning_rate)

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def set_rate(model, value):
    model.optimizer.learning_rate = value


class ByFunction(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        self.warm_up(batch)

    def warm_up(self, batch):
        set_rate(self.model, 0.1 * batch)


class Inherited(ByFunction):
    pass


class Anneals(keras.callbacks.Callback):
    def __init__(self, weight, schedule):
        super().__init__()
        self.weight, self.schedule = weight, schedule

    def on_train_batch_begin(self, batch, logs=None):
        self.weight.assign(self.schedule(batch))


class BySetattr(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        setattr(self.model.optimizer, "learning_rate", 0.1)  # noqa: B010


class Saves(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


def closing(change):
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: change(batch))


@pytest.mark.parametrize(
    ("callback", "own", "changes"),
    [
        (Stops(), True, ["stop_training"]),
        (Counts(), True, []),
        (ByFunction(), True, ["learning_rate"]),
        (Inherited(), True, ["learning_rate"]),
        (Anneals(None, None), True, ["assign"]),
        (BySetattr(), True, ["learning_rate"]),
        (closing(lambda batch: set_rate(None, batch)), True, ["learning_rate"]),
        (closing(print), True, []),
        (keras.callbacks.LambdaCallback(on_batch_end=functools.partial(set_rate, None)), True, ["learning_rate"]),
        (keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: set_rate(None, epoch)), False, []),
        (Saves("x.keras"), True, []),
        (keras.callbacks.TerminateOnNaN(), False, []),
        (keras.callbacks.EarlyStopping(), False, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_changes_of_batch_hooks_are_read_from_their_code(callback, own, changes):
    assert has_own_batch_hooks(callback) is own
    assert changed_by(callback) == changes


def test_callbacks_of_keras_have_batch_hooks_that_are_not_own():
    assert has_batch_hooks(keras.callbacks.TerminateOnNaN())
    assert has_batch_hooks(closing(print))
    assert not has_batch_hooks(keras.callbacks.EarlyStopping())


class CountsSteps(keras.layers.Layer):
    def call(self, inputs):
        self.step.assign_add(1)
        return inputs


class CountsInPlace(keras.Model):
    seen = 0

    def train_step(self, *arguments):
        self.seen += 1
        return super().train_step(*arguments)


class CountsBatches(keras.metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.mean(y_true))
        self.batches.assign_add(1.0)


class CountsSamples(keras.metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_true))
        rows = 0
        rows += 1
        self.rows.assign_add(keras.ops.shape(y_true)[0])


@pytest.mark.parametrize(
    ("kind", "counts"), [(CountsSteps, True), (CountsInPlace, True), (CountsBatches, True), (CountsSamples, False)]
)
def test_code_that_counts_micro_steps_is_found(kind, counts):
    assert counts_micro_steps(kind()) is counts


def test_metrics_of_keras_count_no_micro_steps():
    assert not counts_micro_steps(keras.metrics.Mean())
