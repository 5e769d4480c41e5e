"""What is said of a fit beside its configuration."""

from types import SimpleNamespace

import keras
import numpy as np

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall, Seen
from autoplan.worker.observe import observe


def observed(*layers, strategy=None, batch_size=None, **compiling):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiling)
    if strategy is not None:
        model._distribute_strategy = strategy
    arguments = {"x": np.zeros((64, 4), "float32"), "y": np.zeros((64, 1), "float32"), "batch_size": batch_size}
    call = FitCall(1, model, arguments, type(model).fit)
    return observe(call, data_facts.describe(arguments), Seen(), backends.get("jax"))


def notes_of(**wishes):
    return observed(**wishes).notes


def test_a_plain_fit_needs_no_notes():
    assert notes_of() == []


def test_a_batch_that_the_data_do_not_fill_is_told():
    assert notes_of(batch_size=64) == []
    (note,) = notes_of(batch_size=4096)
    assert note.startswith("the global batch is 4,096 and an epoch has 64 samples, so a micro-step has no more")


def test_a_model_that_runs_eagerly_is_told_with_what_ends_it():
    (note,) = notes_of(run_eagerly=True)
    assert "run_eagerly=True" in note
    assert "only jit_compile=True switches it off" in note


def test_a_distribution_of_tensorflows_own_is_told():
    strategy = type("MirroredStrategy", (SimpleNamespace,), {})(num_replicas_in_sync=2)
    (note,) = notes_of(strategy=strategy)
    assert "MirroredStrategy with 2 replicas" in note


class Uncompiled(keras.layers.Layer):
    """As some of Keras's own that transform images."""

    def __init__(self):
        super().__init__()
        self.supports_jit = False

    def call(self, inputs):
        return inputs


def test_layers_that_keras_does_not_compile_hold_jit_compile():
    found = observed(Uncompiled())
    assert found.config.jit_compile is False
    assert found.held == {"jit_compile": "Keras compiles no layers of kind Uncompiled"}
    assert observed().held == {}
