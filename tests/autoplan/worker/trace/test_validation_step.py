"""Validation steps as workloads."""

import keras
import numpy as np

from autoplan.runtime.data import data_facts, validation_facts
from autoplan.worker.trace.trace_fit import trace_at_batch, with_validation
from cost_models.memory import memory, validation_memory
from cost_models.workload.workload import Role
from tests.builders.configs import local_config
from tests.builders.workloads import cluster

ROWS, PIXELS, CHANNELS = 512, 16, 8


def traced(rows=ROWS, *, batch=4, layers=()):
    """A convolution trained on 4 images at a time, and validated on many at once."""
    model = keras.Sequential([keras.Input((PIXELS, PIXELS, 3)), keras.layers.Conv2D(CHANNELS, 3, padding="same")])
    for layer in (*layers, keras.layers.ReLU(), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)):
        model.add(layer)
    model.compile("adam", "mse")
    x, y = np.zeros((ROWS, PIXELS, PIXELS, 3), "float32"), np.zeros((ROWS, 1), "float32")
    arguments = {"x": x, "y": y, "batch_size": batch, "validation_data": (x, y), "validation_batch_size": rows}
    facts = data_facts.describe(arguments)
    config = local_config(batch)
    workload = trace_at_batch(model, arguments, facts, batch, config)
    return with_validation(workload, model, arguments, validation_facts.of_fit(arguments, facts), config), config


def test_a_validation_of_many_rows_needs_more_than_the_training():
    workload, config = traced()
    assert (workload.validation.rows, workload.validation.usual) == (ROWS, None)
    training, validating = memory(workload, config, cluster()), validation_memory(workload, config, cluster())
    feature_map = ROWS * PIXELS * PIXELS * CHANNELS * 4
    assert training.total < feature_map < validating.total
    assert validating.inputs >= ROWS * PIXELS * PIXELS * 3 * 4
    assert validating.gradients == 0
    assert (validating.parameters, validating.optimizer) == (training.parameters, training.optimizer)
    assert validating.total == sum(validating.components().values())


def test_fewer_rows_need_less():
    workload, config = traced()
    sizes = [validation_memory(workload, config, cluster(), rows).total for rows in (8, 64, ROWS)]
    assert sizes == sorted(sizes)
    assert sizes[2] > 4 * sizes[1]


def test_a_step_holds_no_state_of_the_optimizer():
    workload, _ = traced(layers=[keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    roles = {variable.role for variable in workload.validation.step.variables}
    assert {Role.TRAINABLE, Role.STATE} <= roles
    assert Role.SLOT not in roles


def test_a_validation_in_the_batches_of_the_training_is_not_traced():
    workload, _ = traced(rows=None)
    assert workload.validation is None
