"""Notes and fixed knobs of an observed fit."""

from types import SimpleNamespace

import keras
import numpy as np

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall, SeenCalls
from autoplan.worker.observation import observe_fit


def observed(*layers, strategy=None, batch_size=None, optimizer="sgd", callbacks=None, **compiling):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiling)
    if strategy is not None:
        model._distribute_strategy = strategy
    arguments = {
        "x": np.zeros((64, 4), "float32"),
        "y": np.zeros((64, 1), "float32"),
        "batch_size": batch_size,
        "callbacks": callbacks,
    }
    call = FitCall(1, model, arguments, type(model).fit)
    return observe_fit(call, data_facts.describe(arguments), SeenCalls(), backends.get("jax"))


def notes_of(**wishes):
    return observed(**wishes).notes


def test_a_plain_fit_has_no_notes():
    assert notes_of() == []


def test_a_batch_larger_than_the_data_is_noted():
    assert notes_of(batch_size=64) == []
    (note,) = notes_of(batch_size=4096)
    assert note.startswith("the global batch is 4,096, but an epoch has only 64 samples; estimates assume full batches")


def test_eager_execution_is_noted_with_a_remedy():
    (note,) = notes_of(run_eagerly=True)
    assert "run_eagerly=True" in note
    assert "only jit_compile=True switches it off" in note


def test_a_tf_distribute_strategy_is_noted():
    strategy = type("MirroredStrategy", (SimpleNamespace,), {})(num_replicas_in_sync=2)
    (note,) = notes_of(strategy=strategy)
    assert "MirroredStrategy with 2 replicas" in note


class Uncompiled(keras.layers.Layer):
    """A layer without jit support, like some image layers of Keras."""

    def __init__(self):
        super().__init__()
        self.supports_jit = False

    def call(self, inputs):
        return inputs


def test_layers_that_keras_cannot_compile_fix_jit_compile():
    found = observed(Uncompiled())
    assert found.config.jit_compile is False
    assert found.held == {"jit_compile": "Keras cannot compile layers of type Uncompiled"}
    assert observed().held == {}


class Texts(keras.utils.PyDataset):
    """Batches of four token sequences of these lengths."""

    def __init__(self, *lengths):
        super().__init__()
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return np.zeros((4, self.lengths[index]), "int32"), np.zeros((4, 1), "float32")


def read(data, *, look_seconds=5.0, length=None):
    model = keras.Sequential([keras.Input((length,), dtype="int32"), keras.layers.Embedding(9, 2)])
    model.add(keras.layers.GlobalAveragePooling1D())
    model.compile("sgd", "mse")
    arguments = {"x": data}
    facts = data_facts.describe(arguments, look_seconds=look_seconds)
    call = FitCall(1, model, arguments, type(model).fit)
    return observe_fit(call, facts, SeenCalls(), backends.get("jax"))


def test_the_batches_that_figures_are_of_are_named_where_they_differ():
    found = read(Texts(8, 8, 8, 64, 8, 8, 8))
    told = (
        "batches differ in shape: memory is that of the largest, 4 x 64, and estimated times are of the most frequent, "
        "4 x 8 (7 of 7 batches were looked at)"
    )
    assert found.assumed == [told]
    assert (found.batches.largest, found.batches.mean_rows, found.batches.differ) == ([[4, 64], [4, 1]], 4.0, True)
    assert found.notes == [
        "the data (Texts) cannot be re-batched (its batches differ in shape), so the global batch is not tuned"
    ]


def test_an_open_dimension_is_named_where_not_all_batches_were_looked_at():
    found = read(Texts(*[8] * 9), look_seconds=1e-9)
    assert found.assumed == [
        "an input has a free dimension: the figures are of batches of 4 x 8; 1 of 9 batches was looked at"
    ]
    unseen = "an input has a free dimension: the figures are of the first batch; no other batch was looked at"
    assert read(Texts(*[8] * 9), look_seconds=0.0).assumed == [unseen]
    assert read(Texts(*[8] * 9)).assumed == []
    assert read(Texts(*[8] * 9), look_seconds=1e-9, length=8).assumed == []


class OwnApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)


def test_an_optimizer_with_its_own_apply_holds_the_batch():
    found = observed(optimizer=OwnApply())
    assert not found.rebatchable
    assert found.why_fixed_batch == ("the optimizer OwnApply has its own method apply, which runs at every micro-step")
    assert found.notes == [f"{found.why_fixed_batch}, so the global batch is not tuned"]
    assert observed().rebatchable


def test_batch_hooks_and_policies_are_observed():
    stops = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(stops.model, "lr", 1))
    found = observed(callbacks=[stops, keras.callbacks.EarlyStopping()])
    assert [(one.name, one.changes) for one in found.batch_callbacks] == [("LambdaCallback", ["lr"])]
    assert (found.counting_code, found.own_policies) == ([], [])
