from __future__ import annotations

import keras
import pytest

from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.runtime import model_settings
from cost_models.config import Affects, TrainConfig


def model_of(*layers):
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=4)
    return model


def test_every_knob_that_no_process_build_or_batch_takes_is_a_setting_of_a_model():
    elsewhere = Affects.PROCESS | Affects.BUILD | Affects.SIZES
    tunable = [name for name in knobs.tunable_fields() if not TrainConfig.affects(name) & elsewhere]
    assert set(model_settings.names()) == set(tunable)


def test_a_setting_is_registered_once():
    with pytest.raises(ValueError, match="two functions set jit_compile on a model"):
        model_settings.model_setting("jit_compile")(lambda model, value: None)


def test_the_scripts_own_values_are_read():
    model = model_of()
    assert model_settings.own_values(model) == {"jit_compile": False, "steps_per_execution": 4}
    model_settings.set_value(model, "jit_compile", True)
    model_settings.set_value(model, "steps_per_execution", 2)
    assert model_settings.own_values(model) == {"jit_compile": True, "steps_per_execution": 2}
    model.run_eagerly = True
    assert model_settings.own_values(model)["jit_compile"] is False, "nothing is compiled then"


def test_compilation_is_switched_on_with_what_prevents_it():
    model = model_of()
    model.run_eagerly = True
    model_settings.set_value(model, "jit_compile", True)
    assert (model.jit_compile, model.run_eagerly) == (True, False)


def test_a_layer_that_cannot_be_compiled_is_named():
    model = model_of(keras.layers.RandomRotation(0.1))
    with pytest.raises(ConfigError, match="cannot compile its layers of type RandomRotation"):
        model_settings.set_value(model, "jit_compile", True)
