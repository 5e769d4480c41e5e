from __future__ import annotations

import keras
import pytest

from autoplan.errors import ConfigError
from autoplan.runtime.apply import Change, apply_to_model
from tests.builders.observations import config


def test_only_what_differs_is_changed():
    change = Change(config(64), config(32, 2, precision="mixed_bfloat16"))
    differing = [
        knob for knob in ("precision", "remat", "mesh", "jit_compile", "steps_per_execution") if change.differs(knob)
    ]
    assert differing == ["precision"]
    assert change.differs("batch")
    assert change.before_building() == ["precision"]


@pytest.mark.parametrize("compiled", [True, False])
def test_jit_compile_is_set_on_another_backend_where_auto_means_another_thing(compiled):
    same, other = config(64, jit_compile=compiled), config(64, jit_compile=compiled, backend="tensorflow")
    assert not Change(same, same).differs("jit_compile")
    assert Change(same, other).differs("jit_compile")


def model_of(*layers):
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_switching_jit_compile_on_switches_eager_execution_off():
    model = model_of()
    model.run_eagerly = True
    apply_to_model(model, Change(config(64, jit_compile=False), config(64, jit_compile=True)))
    assert (model.jit_compile, model.run_eagerly) == (True, False)


def test_a_layer_that_cannot_be_compiled_is_an_error():
    change = Change(config(64, jit_compile=False), config(64, jit_compile=True))
    with pytest.raises(ConfigError, match="cannot compile its layers of type RandomRotation"):
        apply_to_model(model_of(keras.layers.RandomRotation(0.1)), change)
