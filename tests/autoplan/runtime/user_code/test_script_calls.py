"""Callbacks of real fits of more micro-steps see the calls of the script."""

import keras
import numpy as np
import pytest

from autoplan.runtime.user_code.script_calls import called_as_in_the_script


class Records(keras.callbacks.Callback):
    """Records its calls, with the number of updates and the loss at each."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.calls, self.stop_after = [], stop_after

    def on_train_begin(self, logs=None):
        self.calls.append(("steps", self.params["steps"]))

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch", epoch))

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch, int(self.model.optimizer.iterations)))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch, int(self.model.optimizer.iterations), round(logs["loss"], 4)))
        if sum(call[0] == "end" for call in self.calls) == self.stop_after:
            self.model.stop_training = True


class Alias(Records):
    """Uses the old names of the batch hooks."""

    on_batch_begin, on_batch_end = Records.on_train_batch_begin, Records.on_train_batch_end
    on_train_batch_begin = keras.callbacks.Callback.on_train_batch_begin
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end


def functions(stop_after=None):
    inner = Records(stop_after)
    made = keras.callbacks.LambdaCallback(on_train_batch_end=inner.on_train_batch_end)
    set_model = made.set_model
    made.set_model = lambda model: (set_model(model), inner.set_model(model))
    made.calls = inner.calls
    return made


def fit(callback, batch, accumulation=1, *, samples=64, executions=1, joined=(1, 1)):
    """Train, with calls joined in groups for a script with a number of executions; returns the calls."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).standard_normal((samples, 3), dtype="float32")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation if accumulation > 1 else None)
    model.compile(optimizer, "mse", steps_per_execution=executions)
    group, own_executions = joined
    steps = -(-samples // (batch * group))
    with called_as_in_the_script([callback], group, executions=own_executions, micro_steps=steps):
        model.fit(x, x[:, :1], batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
    return callback.calls


@pytest.mark.parametrize("make", [Records, Alias, functions])
@pytest.mark.parametrize("stop_after", [None, 3, 5])
def test_split_updates_look_like_whole_ones(make, stop_after):
    own = fit(make(stop_after), 16)
    assert sum(call[0] == "end" for call in own) == (stop_after or 8)
    assert fit(make(stop_after), 4, 4, joined=(4, 1)) == own


def test_an_epoch_that_ends_within_a_group_ends_with_a_call():
    ends = [call[:2] for call in fit(Records(), 4, samples=24, joined=(4, 1)) if call[0] != "begin"]
    assert ends == [("steps", 2), ("epoch", 0), ("end", 0), ("end", 1), ("epoch", 1), ("end", 0), ("end", 1)]


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch has one micro-step per execution")
def test_executions_of_the_script_keep_their_indices():
    own = fit(Records(), 8, executions=4)
    found = fit(Records(), 8, joined=(4, 4))
    indices = [[call[:2] for call in calls if call[0] in ("begin", "end")] for calls in (own, found)]
    assert indices[0] == indices[1] == [("begin", 0), ("end", 3), ("begin", 4), ("end", 7)] * 2


def test_a_callback_has_its_own_hooks_again_afterwards():
    callback, by_function = Records(), functions()
    before = [dict(vars(one)) for one in (callback, by_function)]
    with called_as_in_the_script([callback, by_function], 2, executions=1, micro_steps=None):
        assert vars(callback).keys() != before[0].keys()
    assert [dict(vars(one)) for one in (callback, by_function)] == before


def test_an_epoch_of_unknown_length_stays_unknown():
    callback = Records()
    with called_as_in_the_script([callback], 2, executions=1, micro_steps=None):
        callback.set_params({"steps": None, "epochs": 3})
        assert callback.params == {"steps": None, "epochs": 3}
        callback.set_params({"steps": 5, "epochs": 3})
    assert callback.params == {"steps": 3, "epochs": 3}
