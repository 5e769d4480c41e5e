from __future__ import annotations

import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state

from autoplan.errors import ConfigError
from autoplan.runtime import backends
from autoplan.runtime.apply import Change, OtherModels, ProcessSettings, apply_to_model
from autoplan.runtime.optimizers import accumulation_of
from cost_models.config import Batch, Precision, Remat, RematMode
from tests.builders.observations import config
from tests.builders.slow import slow


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


class UnderAPlan:
    """Models built in this context have the process-wide settings of a plan from float32 to another configuration."""

    def __init__(self, asked=(), **changes):
        self.change = Change(config(32), config(32).with_(**changes))
        self.asked = set(asked)

    def __enter__(self):
        self.settings = ProcessSettings(self.change, backends.get(keras.backend.backend()))
        self.settings.enter()
        return OtherModels(self.change, self.settings, self.asked)

    def __exit__(self, *_):
        keras.config.set_dtype_policy("float32")
        if self.change.differs("remat"):
            global_state.get_global_attribute("remat_scope_stack").pop()


def small(hidden=8, first=None):
    keras.utils.set_random_seed(0)
    first = first or keras.layers.Dense(hidden, "tanh")
    model = keras.Sequential([keras.layers.Input((4,)), first, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def attending():
    keras.utils.set_random_seed(0)
    inputs = keras.layers.Input((4,))
    steps = keras.layers.Reshape((2, 2))(inputs)
    mixed = keras.layers.LayerNormalization()(steps + keras.layers.MultiHeadAttention(2, 4)(steps, steps))
    last = keras.layers.LSTM(3)(keras.ops.concatenate([mixed, steps], axis=-1))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization()(last)))
    model.compile("adam", "mse")
    return model


def train(model):
    x = np.random.default_rng(0).standard_normal((64, 4), dtype="float32")
    model.fit(x, x[:, :1], batch_size=16, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.mark.parametrize("precision", [Precision.MIXED_BFLOAT16, *slow(Precision.MIXED_FLOAT16)])
@pytest.mark.parametrize("build", [small, attending])
def test_another_model_trains_as_without_the_plan(build, precision):
    alone = train(build())
    with UnderAPlan(precision=precision) as others:
        model = build()
        assert others.settings_of(model) == [f"precision {precision.value}"]
        others.set_back(model)
        assert others.settings_of(model) == []
        found = train(model)
    assert np.array_equal(alone, found)
    assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def test_layers_that_the_tuned_model_shares_keep_the_plans_precision():
    with UnderAPlan(precision=Precision.MIXED_BFLOAT16) as others:
        tuned = small()
        other = small(first=tuned.layers[0])
        others.add_tuned(tuned)
        others.set_back(other)
    assert others.settings_of(other) == ["precision mixed_bfloat16"]
    assert tuned.layers[0].compute_dtype == "bfloat16"


def test_layers_of_a_model_that_is_tuned_later_get_the_plans_precision_again():
    with UnderAPlan(precision=Precision.MIXED_BFLOAT16) as others:
        other = small()
        tuned = small(first=other.layers[0])
        others.set_back(other)
        assert other.layers[0].compute_dtype == "float32"
        others.add_tuned(tuned)
    assert [layer.compute_dtype for layer in tuned.layers] == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize(
    ("asked", "explicit"), [({"mixed_float16"}, None), (set(), "mixed_bfloat16")], ids=["asked for", "explicit"]
)
def test_a_precision_that_may_be_the_scripts_own_is_kept(asked, explicit):
    with UnderAPlan(asked, precision=Precision.MIXED_BFLOAT16) as others:
        other = small(first=keras.layers.Dense(8, dtype=explicit))
        others.set_back(other)
    assert other.layers[0].compute_dtype == "bfloat16"
    assert others.settings_of(other) == ["precision mixed_bfloat16"]


def test_rematerialization_of_another_model_is_reported():
    with UnderAPlan(remat=Remat(RematMode.ACTIVATIONS)) as others:
        other = small()
        others.set_back(other)
    assert others.settings_of(other) == ["remat activations"]
    assert others.settings_of(small()) == []


def test_settings_of_the_tuned_model_are_taken_back_for_a_training_of_other_weights():
    plan = UnderAPlan(batch=Batch(8, accumulation=4), jit_compile=False, steps_per_execution=8)
    with plan as others:
        model = small()
        own = model.jit_compile
        others.add_tuned(model)
        apply_to_model(model, plan.change)
        assert (model.jit_compile, model.steps_per_execution) == (False, 8)
        assert accumulation_of(model.optimizer) == 4
        model.layers[0].trainable = False
        others.set_back(model)
        assert others.is_tuned(model)
    assert (model.jit_compile, model.steps_per_execution) == (own, 1)
    assert accumulation_of(model.optimizer) == 1


def test_settings_of_a_later_compile_are_kept():
    plan = UnderAPlan(steps_per_execution=8)
    with plan as others:
        model = small()
        apply_to_model(model, plan.change)
        model.compile("sgd", "mse", steps_per_execution=2)
        others.set_back(model)
    assert model.steps_per_execution == 2
