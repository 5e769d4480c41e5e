"""A fit measured in this process."""

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.measurement import measure_fit
from autoplan.worker.measure.trial_fit import TrialFit

QUICK = {"groups": 3, "group_seconds": 0.02, "max_seconds": 10}


@pytest.fixture(scope="module")
def measured():
    """Return the measurement and the phases of a fit with two micro-steps per update."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "batch_size": 16, "verbose": 0}
    phases = []
    call = FitCall(1, model, arguments, keras.Model.fit)
    fit = TrialFit(call, data_facts.describe(arguments), None, backends.get("jax"), QUICK, phases.append)
    return measure_fit(fit, 1.5, simulated=False), phases


def test_rates_follow_from_the_median_micro_step(measured):
    found, _ = measured
    assert found.micro_step_seconds_low <= found.micro_step_seconds <= found.micro_step_seconds_high
    assert found.update_seconds == pytest.approx(2 * found.micro_step_seconds)
    assert found.samples_per_second == pytest.approx(16 / found.micro_step_seconds)
    assert found.updates_per_second == pytest.approx(1 / found.update_seconds)


def test_groups_compilation_and_setup_are_reported(measured):
    found, phases = measured
    assert found.groups == len(found.group_seconds) >= 3
    assert found.micro_steps >= found.groups
    assert found.first_step_seconds > 0
    assert found.setup_seconds == 1.5
    assert found.wall_seconds > 1.5
    assert found.compute_micro_step_seconds > 0
    assert {"memory", "measure without input"} <= set(phases)


def test_the_peak_on_a_cpu_is_that_of_the_compiled_program(measured):
    found, _ = measured
    assert found.peak_bytes_source == "compiled"
    assert found.peak_bytes > 0
