"""Batches with which a fit is traced."""

import keras
import numpy as np
import pytest

from autoplan.errors import WorkloadError
from autoplan.runtime.data import data_facts
from autoplan.worker.trace import trace_fit
from autoplan.worker.trace.trace_fit import trace_at_batch, trace_with_fallback, training_batch
from tests.builders.configs import local_config
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
