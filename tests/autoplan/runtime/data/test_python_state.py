"""Objects of Python before and after a fit changes them."""

import random
from collections import defaultdict, deque

import keras
import numpy as np

from autoplan.runtime.data.python_state import PythonState

COUNT = 0
KEPT = []


class Part:
    def __init__(self):
        self.values = {1, 2}


class Everything(keras.callbacks.Callback):
    calls = 0

    def __init__(self):
        super().__init__()
        self.kept, self.named, self.queue = [], defaultdict(list), deque([1])
        self.array, self.part, self.best = np.zeros(3), Part(), None
        self.random, self.generator = random.Random(0), np.random.default_rng(0)

    def on_train_batch_end(self, batch, logs=None):
        global COUNT
        COUNT += 1
        KEPT.append(batch)
        Everything.calls += 1
        self.kept.append(np.ones(4))
        self.named["loss"].append(1.0)
        self.queue.append(2)
        self.array[0] += 1
        self.part.values.add(3)
        self.best = 1.0
        self.later = self.random.random() + self.generator.random()


def test_everything_that_a_callback_changes_is_restored_in_place():
    callback, alias = Everything(), None
    alias = callback.kept
    state = PythonState([callback])
    drawn = []
    for _ in range(2):
        callback.on_train_batch_end(0)
        drawn.append(callback.later)
        state.restore()
        assert callback.kept is alias
        assert (COUNT, KEPT, Everything.calls) == (0, [], 0)
        assert (callback.kept, dict(callback.named), list(callback.queue), callback.best) == ([], {}, [1], None)
        assert callback.array.tolist() == [0, 0, 0]
        assert callback.part.values == {1, 2}
        assert not hasattr(callback, "later")
    assert drawn[0] == drawn[1]


def test_what_a_function_encloses_is_restored():
    losses, count = [], 0

    def record(batch, logs):
        nonlocal count
        count += 1
        losses.append(batch)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=record)
    state = PythonState([callback])
    callback.on_train_batch_end(5, {})
    assert (losses, count) == ([5], 1)
    state.restore()
    assert (losses, count) == ([], 0)


def test_models_and_large_arrays_are_left_as_they_are():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    callback = keras.callbacks.Callback()
    callback.other, callback.data = [model], np.zeros(2**23)
    state = PythonState([callback])
    model.layers[0].trainable = False
    callback.data[0] = 1
    state.restore()
    assert callback.other == [model]
    assert model.layers[0].trainable is False
    assert callback.data[0] == 1
