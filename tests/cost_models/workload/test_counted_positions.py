"""Positions that become the same number in a 16-bit type are found in traced steps, and others are not."""

import keras
import pytest
from keras import ops

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.workload.counted_positions import merged_positions


class Positions(keras.layers.Layer):
    """Adds the sine of each position, counted in the compute dtype."""

    def __init__(self, counted, **options):
        super().__init__(**options)
        self.counted = counted

    def call(self, inputs):
        return inputs + ops.sin(self.counted(ops.shape(inputs)[1], self.compute_dtype) * 0.01)


COUNTED = {
    "in the compute dtype": lambda length, dtype: ops.arange(length, dtype=dtype)[:, None],
    "as integers, then cast": lambda length, dtype: ops.cast(ops.expand_dims(ops.arange(length) + 1, -1), dtype),
    "in float32, then cast": lambda length, dtype: ops.cast(
        ops.sin(ops.arange(length, dtype="float32")[:, None]), dtype
    ),
}


def found(policy, length, counted):
    keras.config.set_dtype_policy(policy)
    try:
        layer = Positions(COUNTED[counted], name="positions")
        hidden = [keras.layers.Embedding(600, 4), layer, keras.layers.Dropout(0.1), keras.layers.Dense(600)]
        model = keras.Sequential([keras.Input((length,), dtype="int32"), *hidden])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return merged_positions(trace_train_step(model, synthetic_specs(model, 2), local_batch=2))
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("counted", ["in the compute dtype", "as integers, then cast"])
def test_positions_above_256_are_the_same_in_bfloat16(counted):
    assert found("mixed_bfloat16", 300, counted) == (
        "positions are counted to 299 in positions in bfloat16, in which 256 and 257 are the same number"
    )


@pytest.mark.parametrize(
    ("policy", "length", "counted"),
    [
        ("mixed_bfloat16", 200, "in the compute dtype"),
        ("mixed_float16", 300, "in the compute dtype"),
        ("mixed_bfloat16", 300, "in float32, then cast"),
        ("float32", 300, "as integers, then cast"),
    ],
)
def test_positions_that_stay_apart_are_not_named(policy, length, counted):
    """The one-hot targets of 600 classes are compared as integers."""
    assert found(policy, length, counted) == ""
