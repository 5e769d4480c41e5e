"""Calls of a script about precision, distribution and fitting are seen, and overridden by a plan."""

import keras
import numpy as np
import pytest

from autoplan.runtime import backends, model_facts
from autoplan.runtime.apply import Change, ProcessSettings
from autoplan.runtime.intercept import Interception, run_one_micro_step
from cost_models.config import AttentionMode, Batch, Precision, Remat, RematMode, TrainConfig

SCRIPT = TrainConfig(batch=Batch(32))


@pytest.fixture
def intercept():
    installed = []

    def install(wanted=None, on_fit=run_one_micro_step, script=SCRIPT):
        settings = ProcessSettings(Change(script, wanted), backends.get("jax")) if wanted else None
        one = Interception(on_fit, settings)
        installed.append(one)
        one.install()
        return one

    yield install
    for one in installed:
        one.uninstall()
    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")


def small_model():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2, "relu")])
    model.compile("sgd", "mse")
    return model


def test_a_script_without_settings_runs_unchanged(intercept):
    watching = intercept()
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert watching.seen.policies == {"float32", "mixed_bfloat16"}
    assert watching.seen.overridden == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: keras.config.set_dtype_policy("float32"),
        lambda: keras.mixed_precision.set_global_policy("float32"),
        lambda: keras.mixed_precision.set_dtype_policy(keras.DTypePolicy("float32")),
        keras.utils.clear_session,
        keras.backend.clear_session,
    ],
)
def test_a_script_cannot_override_the_precision(intercept, call):
    wanted = SCRIPT.with_(precision=Precision.MIXED_BFLOAT16)
    watching = intercept(wanted)
    name = "clear_session" if "clear_session" in repr(call) else None
    (getattr(keras.utils, name) if name else call)()
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert small_model().layers[0].compute_dtype == "bfloat16"
    assert len(watching.seen.overridden) == 1


@pytest.mark.parametrize("own", [AttentionMode.AUTO, AttentionMode.UNFUSED])
def test_a_script_cannot_override_attention(intercept, own):
    wanted = {AttentionMode.AUTO: AttentionMode.UNFUSED, AttentionMode.UNFUSED: AttentionMode.AUTO}[own]
    watching = intercept(SCRIPT.with_(attention=wanted), script=SCRIPT.with_(attention=own))
    set_own = keras.config.enable_flash_attention if own is AttentionMode.AUTO else keras.config.disable_flash_attention
    set_own()
    assert model_facts.attention_setting() is wanted
    keras.utils.clear_session()
    assert model_facts.attention_setting() is wanted
    assert watching.seen.overridden == [f"{set_own.__name__}()", "clear_session()"]


def test_remat_survives_clear_session_and_the_scripts_own_scope(intercept):
    intercept(SCRIPT.with_(remat=Remat(RematMode.ACTIVATIONS)))
    keras.utils.clear_session()
    with keras.RematScope(mode="full"):
        layer = keras.layers.Dense(2)
    assert layer._remat_mode.mode == "activations"


def test_an_unchanged_knob_is_left_to_the_script(intercept):
    intercept(SCRIPT.with_(remat=Remat(RematMode.ACTIVATIONS)))
    keras.config.set_dtype_policy("mixed_float16")
    assert keras.config.dtype_policy().name == "mixed_float16"


def test_fits_are_counted_and_bound(intercept):
    calls = []
    intercept(on_fit=calls.append)
    model, x = small_model(), np.zeros((8, 4))
    model.fit(x, np.zeros((8, 2)), 4, epochs=7)
    assert calls[0].index == 1
    assert (calls[0].arguments["batch_size"], calls[0].arguments["epochs"]) == (4, 7)


def test_a_fit_that_calls_super_counts_once(intercept):
    class Eager(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    watching = intercept()
    model = Eager([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.zeros((8, 4)), np.zeros((8, 2)), epochs=50)
    assert watching.seen.fits == 1
    assert int(model.optimizer.iterations) == 1


def test_an_earlier_fit_returns_a_history_with_validation_logs(intercept):
    intercept()
    model = small_model()
    x, y = np.zeros((8, 4)), np.zeros((8, 2))
    assert set(model.fit(x, y).history) == {"loss"}
    shown = model.fit(x, y, epochs=3, validation_split=0.5).history
    assert shown["val_loss"] == shown["loss"]


def test_uninstall_restores_every_function():
    before = keras.config.set_dtype_policy, keras.RematScope.__enter__, keras.Model.fit
    one = Interception(run_one_micro_step)
    one.install()
    one.uninstall()
    assert (keras.config.set_dtype_policy, keras.RematScope.__enter__, keras.Model.fit) == before


@pytest.mark.parametrize(
    ("arguments", "rows"), [({}, 32), ({"batch_size": 8}, 8), ({"steps_per_epoch": 4}, 24), ({"epochs": 3}, 32)]
)
def test_an_earlier_fit_runs_one_batch_of_the_scripts_own_size(intercept, arguments, rows):
    intercept()
    seen = []

    class Telling(keras.Sequential):
        def train_step(self, *arguments):
            seen.append(arguments[-1][0].shape[0])
            return super().train_step(*arguments)

    model = Telling([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", steps_per_execution=8)
    model.fit(np.zeros((96, 4)), np.zeros((96, 2)), **arguments)
    assert set(seen) == {rows}
    assert int(model.optimizer.iterations) == 1
    assert model.steps_per_execution == 8
