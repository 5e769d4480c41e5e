"""Batches with which a fit is traced."""

import keras
import numpy as np
import pytest

from autoplan.errors import WorkloadError
from autoplan.runtime.data import data_facts
from autoplan.worker.trace import trace_fit
from autoplan.worker.trace.trace_fit import (
    trace_at_batch,
    trace_with_fallback,
    training_batch,
    with_largest_batch,
)
from cost_models.memory import memory
from tests.builders.configs import local_config
from tests.builders.workloads import cluster
from tests.models import zoo

BATCH = 4


def described(**arguments):
    return arguments, data_facts.describe(arguments)


def test_a_fit_on_arrays_is_traced_with_their_shapes():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    arguments, facts = described(x=np.zeros((64, 3), "float32"), y=np.zeros((64, 2), "float32"), batch_size=16)
    workload = trace_at_batch(model, arguments, facts, BATCH, local_config(BATCH))
    assert workload.local_batch == BATCH
    assert workload.precision == "float32"
    inputs = [workload.tensors[number].shape for number in workload.inputs]
    assert {tuple(dim.at(BATCH) for dim in shape) for shape in inputs} >= {(BATCH, 3), (BATCH, 2)}


def test_a_fit_without_data_is_traced_with_synthetic_ones():
    model = zoo.mlp()
    facts = data_facts.DataFacts("synthetic", None, BATCH, None, explicit_steps=False)
    leaves = keras.tree.flatten(training_batch(model, {}, facts, BATCH))
    assert {leaf.shape[0] for leaf in leaves} == {BATCH}


def test_data_without_batches_of_arrays_are_an_error_that_lists_what_has_some(monkeypatch):
    monkeypatch.setattr(data_facts, "sample_batch", lambda *_: None)
    arguments, facts = described(x=np.zeros((64, 3), "float32"), batch_size=16)
    with pytest.raises(WorkloadError, match=r"the data \(ndarray\) .*keras.utils.PyDataset"):
        training_batch(None, arguments, facts, BATCH)


@pytest.mark.parametrize("exact", [False, True])
def test_a_batch_whose_indices_overflow_is_traced_at_the_datas_own_unless_the_step_depends_on_it(monkeypatch, exact):
    traced = []

    def at_batch(model, arguments, facts, local_batch, config):
        traced.append(local_batch)
        if local_batch > 100:
            raise OverflowError
        return type("Traced", (), {"batch_exact": exact})()

    monkeypatch.setattr(trace_fit, "trace_at_batch", at_batch)
    _, facts = described(x=np.zeros((64, 3), "float32"), batch_size=16)
    if exact:
        with pytest.raises(OverflowError):
            trace_with_fallback(None, {}, facts, 2**31, local_config(8))
    else:
        trace_with_fallback(None, {}, facts, 2**31, local_config(8))
    assert traced == [2**31, 16]


class Lengths(keras.utils.PyDataset):
    """Batches of four sequences; one is eight times as long as the others."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        length = 256 if index == 3 else 32
        return np.zeros((4, length), "int32"), np.zeros((4, 1), "float32")


def test_the_largest_batch_is_traced_beside_the_usual_one():
    """Two matrices of scores, each as long as wide, take 64 times as much where the sequence is 8 times as long."""
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(50, 8)(tokens)
    attended = keras.layers.Attention()([embedded, embedded])
    model = keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(attended)))
    model.compile("adam", "mse")
    arguments = {"x": Lengths()}
    facts = data_facts.describe(arguments, look_seconds=5.0)
    usual = trace_at_batch(model, arguments, facts, BATCH, local_config(BATCH))
    both = with_largest_batch(usual, model, arguments, facts, facts.shapes.largest, local_config(BATCH))
    assert (both.largest.rows, both.largest.usual) == (4, 4)
    alone, together = (memory(one, local_config(BATCH), cluster()).activations for one in (usual, both))
    scores = 4 * 256 * 256 * 4
    assert alone < scores < together
