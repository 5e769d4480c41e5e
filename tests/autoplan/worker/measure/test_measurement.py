"""A fit measured in this process."""

import queue
import time

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.runtime.timing.fit_timer import NonFiniteLoss
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


class Keeps(keras.callbacks.Callback):
    """Keeps arrays, and tells how many it had at each beginning and end of a fit."""

    def __init__(self, size=1):
        super().__init__()
        self.kept, self.told, self.size = [], queue.SimpleQueue(), size

    def on_train_begin(self, logs=None):
        self.told.put((len(self.kept), int(self.model.optimizer.iterations)))

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(np.ones(self.size))

    def on_train_end(self, logs=None):
        self.told.put(len(self.kept))


def measure(*, rows, optimizer="sgd", callbacks=(), executions=1, epochs=1, **options):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", steps_per_execution=executions)
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "batch_size": 16, "verbose": 0, "callbacks": list(callbacks), "epochs": epochs}
    call = FitCall(1, model, arguments, keras.Model.fit)
    fit = TrialFit(call, data_facts.describe(arguments), None, backends.get("jax"), QUICK | options, lambda _: None)
    return measure_fit(fit, 0.0, simulated=False)


def rising(first, by):
    """A learning rate that rises to 1e4 times `first` over `by` micro-steps, and goes on."""
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(first, by, 1e4))


def told_by(callback):
    return [callback.told.get_nowait() for _ in range(callback.told.qsize())]


@pytest.mark.parametrize("executions", [1, 4])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_short_fit_is_measured_by_running_it_again_from_its_start(executions, epochs):
    callback = Keeps()
    found = measure(
        rows=160, optimizer=rising(1e-6, 10 * epochs), callbacks=[callback], executions=executions, epochs=epochs
    )
    calls = epochs * -(-10 // executions)
    told = told_by(callback)
    begun, ended = told[::2], told[1::2]
    assert found.fits >= 2
    assert found.fit_micro_steps == 10 * epochs
    assert found.groups >= 1
    assert set(begun) == {(0, 0)}
    assert len(begun) == found.fits
    assert max(ended) == calls
    assert found.recompilations == 0


def test_the_time_between_fits_is_not_measured():
    class Slow(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            time.sleep(0.1)  # five times as long as a group

        def on_train_batch_end(self, batch, logs=None):
            pass

    found = measure(rows=160, callbacks=[Slow()])
    assert found.fits >= 2
    assert found.micro_step_seconds < 0.1 / 10


def test_a_loss_that_the_fit_itself_reaches_is_reported_with_its_micro_step():
    with pytest.raises(NonFiniteLoss, match=r"loss is (nan|inf) by micro-step \d+ of the 200 that the fit has"):
        measure(rows=3200, optimizer=rising(1e-1, 40))


def test_memory_that_a_callback_keeps_is_reported():
    found = measure(rows=16 * 300, callbacks=[Keeps(2**17)], groups=2, group_seconds=0.3)
    assert found.growth_bytes == pytest.approx(2**20, rel=0.1)
    assert found.fit_micro_steps == 300
    assert measure(rows=16 * 300, groups=2, group_seconds=0.3).growth_bytes is None


class Stalling(keras.utils.PyDataset):
    """Batches that come at once for a while, and then only after a wait of three groups each."""

    def __len__(self):
        return 500

    def __getitem__(self, index):
        if index > 250:
            time.sleep(0.3)
        return np.ones((4, 3), "float32"), np.ones((4, 1), "float32")


def test_a_group_ends_where_the_input_stalls():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    arguments = {"x": Stalling(), "shuffle": False, "verbose": 0}
    options = {"groups": 30, "group_seconds": 0.1, "max_seconds": 1.5}
    call = FitCall(1, model, arguments, keras.Model.fit)
    found = measure_fit(
        TrialFit(call, data_facts.describe(arguments), None, backends.get("jax"), options, lambda _: None),
        0.0,
        simulated=False,
    )
    assert max(found.group_seconds) > 0.2, "a group has stalled batches"
    assert found.wall_seconds < 30, "a group of as many calls as before the stall would take longer"
