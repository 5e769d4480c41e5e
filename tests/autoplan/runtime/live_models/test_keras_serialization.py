"""Custom classes and functions are stored beside a config under unique names."""

import keras
import pytest
from keras.src.saving import object_registration, serialization_lib

from autoplan.runtime.live_models.keras_serialization import LayerFactory, Recorder, global_policy
from tests.models import live


def recorded(obj, policy="float32", outputs=()):
    recorder = Recorder(policy, outputs)
    with recorder.recording():
        config = serialization_lib.serialize_keras_object(obj)
    return config, recorder


def made(config, recorder):
    return serialization_lib.deserialize_keras_object(config, custom_objects=recorder.custom, safe_mode=False)


class Silent(keras.layers.Layer):
    """A layer without get_config."""

    def get_config(self):
        raise NotImplementedError("it is a secret")


def test_keras_is_restored_after_recording():
    def looked_at():
        return (
            object_registration.get_registered_name,
            serialization_lib.serialize_keras_object,
            serialization_lib.record_object_after_serialization,
            keras.layers.Lambda._serialize_function_to_config,
        )

    before = looked_at()
    with pytest.raises(NotImplementedError, match="secret"):
        recorded(Silent())
    assert looked_at() == before


def test_a_custom_layer_is_deserialized_without_registration():
    config, recorder = recorded(live.Block(8, name="mine"))
    assert config["registered_name"] == "autoplan>tests.models.live.Block"
    again = made(config, recorder)
    assert type(again) is live.Block
    assert (again.width, again.name) == (8, "mine")


def test_a_layer_whose_init_takes_no_keras_arguments_has_its_name_and_policy():
    layer = live.Scale(3)
    layer.name = "renamed"
    again = made(*recorded(layer, policy="mixed_bfloat16"))
    assert (again.power, again.name, again.dtype_policy.name) == (3, "renamed", "float32")


def test_classes_of_the_same_name_are_distinguished():
    def kind(value, name="Twin"):
        def call(self, x):
            return x * value

        return type(name, (keras.layers.Layer,), {"call": call, "__module__": __name__})

    for name in ("Twin", "Dropout"):
        one, two = kind(2, name), kind(3, name)
        model = keras.Sequential([keras.Input((1,)), one(), two(name="second"), keras.layers.Dropout(0.5, name="own")])
        again = made(*recorded(model))
        assert [type(layer) for layer in again.layers] == [one, two, keras.layers.Dropout]


def test_functions_are_stored_as_objects():
    factor = 3.0
    times = keras.layers.Lambda(lambda x: live.doubled(x) * factor)
    assert made(*recorded(times)).function is times.function
    assert made(*recorded(keras.layers.Lambda(live.doubled))).function is live.doubled
    dense = keras.layers.Dense(4, activation=lambda x: x + factor)
    assert made(*recorded(dense)).activation is dense.activation
    assert made(*recorded(keras.layers.Activation(live.doubled))).activation is live.doubled


def test_functions_of_keras_are_serialized_by_keras():
    config, recorder = recorded(keras.layers.Dense(4, activation="relu"))
    assert config["config"]["activation"] == "relu"
    assert recorder.custom == {}


class AtMost(keras.constraints.Constraint):
    """Its config omits its limit."""

    def __init__(self, limit=1.0):
        self.limit = limit

    def __call__(self, weight):
        return keras.ops.minimum(weight, self.limit)


def test_stateless_objects_have_attributes_that_their_config_omits():
    again = made(*recorded(keras.layers.Dense(4, kernel_constraint=AtMost(0.25))))
    assert again.kernel_constraint.limit == 0.25


@keras.saving.register_keras_serializable("shop")
class Registered(keras.layers.Layer):
    """Registered with Keras under another name."""


def test_registered_classes_are_recorded_under_their_registered_names():
    config, recorder = recorded(Registered())
    assert recorder.registered == {"shop>Registered": Registered}
    assert type(made(config, recorder)) is Registered


def test_layers_with_the_global_policy_are_recorded_without_a_policy():
    follows, explicit = keras.layers.Dense(4), keras.layers.Dense(4, dtype="float16")
    output = keras.layers.Dense(4)
    assert recorded(follows)[0]["config"]["dtype"] is None
    assert recorded(explicit)[0]["config"]["dtype"]["config"] == {"name": "float16"}
    config, recorder = recorded(output, outputs=[output])
    assert config["config"]["dtype"]["config"] == {"name": "float32"}
    assert recorder.outputs_with_policy == {id(output)}


def test_sublayers_of_an_output_layer_stay_float32_with_it():
    head = live.Block(4)
    config, recorder = recorded(head, outputs=[head, head.inner, head.outer])
    with global_policy("mixed_bfloat16"):
        again = made(config, recorder)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert {layer.dtype_policy.name for layer in again._flatten_layers()} == {"float32"}


def test_a_factory_uses_from_config_of_classes_that_override_it():
    assert LayerFactory(live.Scale).uses_keras_from_config
    assert not LayerFactory(keras.Model).uses_keras_from_config
