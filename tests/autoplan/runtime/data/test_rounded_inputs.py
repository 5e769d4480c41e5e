"""Inputs that lose values if they are rounded to 16 bits are found, and others are not."""

import keras
import numpy as np
import pytest

from autoplan.runtime.data import rounded_inputs

ROWS = np.random.default_rng(0)


def model(dtype="float32", width=3):
    return keras.Sequential([keras.Input((width,), dtype=dtype, name="table"), keras.layers.Dense(1)])


def table(column):
    normal = ROWS.standard_normal((len(column), 2))
    return np.column_stack([normal, column])


@pytest.mark.parametrize(
    ("column", "policies"),
    [
        (ROWS.integers(0, 256, 500), set()),  # pixels
        (np.arange(200) * 256.0, set()),  # large, and all of them exact
        (np.arange(500), {"mixed_bfloat16"}),  # ids
        (ROWS.integers(1990, 2024, 500), {"mixed_bfloat16"}),  # years
        (np.arange(5000), {"mixed_bfloat16", "mixed_float16"}),
        (np.tile([0.0, 90000.0], 250), {"mixed_float16"}),  # overflows
        (ROWS.normal(0, 3000, 500), set()),  # not scaled, but as exact as any
        (ROWS.normal(1013.25, 5, 500), {"mixed_bfloat16"}),  # pressure in hPa
        (ROWS.normal(40000, 5, 500), {"mixed_bfloat16", "mixed_float16"}),
        (np.full(500, 1013.25), set()),  # says nothing
        (np.where(np.arange(500) % 7, np.nan, 5.0), set()),
    ],
)
def test_a_policy_is_named_if_it_loses_values_of_a_column(column, policies):
    found = rounded_inputs.lost_values(model(), table(column))
    assert set(found) == policies
    assert all(text.startswith("column 2 of the input ") for text in found.values())


def test_the_values_are_named():
    found = rounded_inputs.lost_values(model(), table(np.arange(300)))
    where = "column 2 of the input"
    assert found == {
        "mixed_bfloat16": f"{where} has whole numbers up to 299, of which 256 and 257 would become the same"
    }


def test_integers_are_judged_where_the_model_declares_floats():
    ids = np.tile(np.arange(500)[:, None], 3)
    assert "mixed_bfloat16" in rounded_inputs.lost_values(model("float32"), ids)
    assert rounded_inputs.lost_values(model("int32"), ids) == {}

    class Own(keras.Model):  # declares nothing, and looks integers up
        def call(self, inputs):
            return inputs

    assert rounded_inputs.lost_values(Own(), ids) == {}
    assert "mixed_bfloat16" in rounded_inputs.lost_values(Own(), ids.astype("float32"))


def test_each_of_several_inputs_is_matched_by_name():
    inputs = {"store": keras.Input((1,), dtype="int32", name="store"), "age": keras.Input((1,), name="age")}
    joined = keras.layers.Concatenate()([keras.ops.cast(inputs["store"], "float32"), inputs["age"]])
    both = keras.Model(inputs, keras.layers.Dense(1)(joined))
    data = {"store": np.arange(500)[:, None], "age": ROWS.integers(0, 99, (500, 1))}
    assert rounded_inputs.lost_values(both, data) == {}
    found = rounded_inputs.lost_values(both, {"store": data["age"], "age": data["store"]})
    assert found["mixed_bfloat16"].startswith("the input 'age' has whole numbers up to 499")


def test_keras_rounds_inputs_in_this_way():
    """Two ids that are said to become the same give the same output, though the weights are float32."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        built = model(width=1)
        built.layers[0].kernel.assign([[1.0]])
        outputs = keras.ops.convert_to_numpy(built(np.array([[255.0], [256.0], [257.0]])))
    finally:
        keras.config.set_dtype_policy("float32")
    assert outputs[1] == outputs[2] != outputs[0]
