"""`autoplan.measure`: the measurement of a step of a custom loop."""

import subprocess
import sys
import time

import jax
import keras
import numpy as np
import pytest

import autoplan
from autoplan.errors import ConfigError

QUICK = {"groups": 3, "group_seconds": 0.02, "max_seconds": 10}


def test_a_step_of_known_length_is_timed():
    calls = []

    def step(batch):
        calls.append(batch)
        time.sleep(0.2 if len(calls) == 1 else 0.01)

    found = autoplan.measure(step, {"x": np.zeros((50, 3))}, **QUICK)
    assert found.first_call_seconds >= 0.2
    assert 0.01 <= found.micro_step_seconds_low <= found.micro_step_seconds <= found.micro_step_seconds_high
    assert found.samples_per_second == pytest.approx(50 / found.micro_step_seconds)
    assert found.groups == len(found.group_seconds) == 3
    assert len(calls) > found.micro_steps >= 3


def test_asynchronous_work_is_waited_for():
    """The product is dispatched but not returned; without waiting, almost no time would be measured."""
    kept = []
    product = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: x @ y / 300.0, x))

    def step(x):
        kept[:] = [product(x)]

    x = jax.numpy.ones((300, 300))
    started = time.perf_counter()
    for _ in range(6):
        jax.block_until_ready(product(x))
    waited = (time.perf_counter() - started) / 6
    found = autoplan.measure(step, x, **QUICK)
    assert found.micro_step_seconds > 0.2 * waited
    assert kept[0].is_ready()


def test_a_step_may_keep_state_between_calls():
    state = {"w": jax.numpy.ones(4)}
    update = jax.jit(lambda s, x: {"w": s["w"] - 0.1 * jax.grad(lambda w: (x @ w).mean())(s["w"])}, donate_argnums=0)

    def step(x):
        nonlocal state
        state = update(state, x)

    found = autoplan.measure(step, np.ones((8, 4), "float32"), **QUICK)
    assert found.samples_per_second > 0
    assert float(state["w"][0]) < 1.0


def test_train_on_batch_is_measured_with_several_arguments():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    found = autoplan.measure(model.train_on_batch, np.ones((16, 4)), np.ones((16, 1)), **QUICK)
    assert found.micro_step_seconds == pytest.approx(16 / found.samples_per_second)
    assert found.backend == "jax"
    text = str(found)
    assert "per micro-step (95% confidence interval " in text
    assert "samples/s; first call" in text
    assert "\n" not in text


def test_the_number_of_samples_can_be_given():
    assert autoplan.measure(lambda: None, **QUICK).samples_per_second is None
    found = autoplan.measure(lambda: None, samples=7, **QUICK)
    assert found.samples_per_second == pytest.approx(7 / found.micro_step_seconds)


def test_an_invalid_step_is_rejected():
    with pytest.raises(ConfigError, match=r"got a ndarray as the step; expected a function .*measure\(step, batch\)"):
        autoplan.measure(np.ones(3), np.ones(3))
    with pytest.raises(ConfigError, match="at least one group"):
        autoplan.measure(lambda: None, groups=0)


def test_exceptions_of_a_step_pass_through():
    def step(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        autoplan.measure(step, np.ones(3))


def test_a_loop_without_keras_is_measured_on_the_framework_that_it_has_loaded(tmp_path):
    code = (
        "import jax, autoplan\n"
        "print(autoplan.measure(jax.jit(lambda x: x * 2), jax.numpy.ones(8), groups=3, group_seconds=0.02).backend)\n"
    )
    home = {"KERAS_HOME": str(tmp_path), "PATH": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, text=True, timeout=120)
    assert done.stdout == "jax\n", done.stderr
