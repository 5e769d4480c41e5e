"""Keras settings of a live model, read and set again."""

import keras
import pytest

from autoplan.errors import SourceError
from autoplan.runtime.live_models.build_settings import apply_settings, building_like, read_settings, remat_modes
from autoplan.runtime.model_facts import attention_of
from cost_models.config import AttentionMode


@pytest.fixture(autouse=True)
def restored():
    """Restore the global settings after a test."""
    before = keras.config.floatx(), keras.config.epsilon(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_epsilon(before[1])
    keras.config.set_dtype_policy(before[2])


def model(mode=None):
    with keras.RematScope(mode=mode):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])


def test_settings_are_those_of_this_process_and_of_the_layers():
    keras.config.set_epsilon(1e-4)
    found = read_settings(model("full"))
    assert (found.backend, found.floatx, found.epsilon, found.devices) == ("jax", "float32", 1e-4, 1)
    assert found.remat.mode == "full"
    assert read_settings(model()).remat is None


def test_layers_of_different_scopes_have_no_common_one():
    both = keras.Sequential([keras.Input((3,)), model("full").layers[0], keras.layers.Dense(1)])
    assert len(remat_modes(both)) == 2
    assert read_settings(both).remat is None


def test_settings_are_set_again():
    keras.config.set_epsilon(1e-4)
    found = read_settings(model())
    keras.config.set_epsilon(1e-7)
    apply_settings(found, "mixed_bfloat16")
    assert keras.config.epsilon() == 1e-4
    assert keras.config.dtype_policy().name == "mixed_bfloat16"


def test_a_model_is_built_under_the_live_models_settings():
    found = read_settings(model("full"))
    with building_like(found, "mixed_bfloat16"):
        layer = keras.layers.Dense(1)
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert remat_modes(keras.Sequential([keras.Input((3,)), layer]))[0].mode == "full"
    assert keras.config.dtype_policy().name == "float32"


def attending(**arguments):
    inputs = keras.Input((8, 4))
    return keras.Model(inputs, keras.layers.MultiHeadAttention(2, 4, **arguments)(inputs, inputs))


def test_attention_of_the_layers_is_set_again():
    keras.config.disable_flash_attention()
    try:
        found = read_settings(attending())
        keras.config.enable_flash_attention()
        with building_like(found, "float32"):
            assert attention_of(attending()) is AttentionMode.UNFUSED
        assert attention_of(attending()) is AttentionMode.AUTO
        apply_settings(found, "float32")
        assert attention_of(attending()) is found.attention is AttentionMode.UNFUSED
    finally:
        keras.config.enable_flash_attention()


def test_a_distribution_that_a_worker_cannot_set_is_an_error(monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", object)
    with pytest.raises(SourceError, match="a object is set in this process and cannot be set again in a worker"):
        read_settings(model())
