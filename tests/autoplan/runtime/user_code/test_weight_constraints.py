"""Constraints that act at every micro-step are found by applying them twice."""

import keras
import pytest

from autoplan.runtime.user_code import weight_constraints


class Decay(keras.constraints.Constraint):
    """Shrinks a weight whenever it is called."""

    def __call__(self, w):
        return w * 0.999


class OnlyFive(keras.constraints.Constraint):
    def __call__(self, w):
        return keras.ops.reshape(w, (5, 70))


def model(constraint, units=3):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, kernel_constraint=constraint, name="dense")])


@pytest.mark.parametrize(
    "constraint",
    [
        None,
        keras.constraints.NonNeg(),
        keras.constraints.MaxNorm(0.9, axis=0),
        keras.constraints.UnitNorm(axis=0),
        keras.constraints.MinMaxNorm(0.1, 0.9, rate=1.0, axis=0),
        lambda w: keras.ops.clip(w, -0.01, 0.01),
    ],
)
def test_a_constraint_that_can_be_repeated_is_not_reported(constraint):
    assert weight_constraints.not_idempotent(model(constraint)) == ""


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        (keras.constraints.MinMaxNorm(0.0, 0.9, rate=0.1, axis=0), "MinMaxNorm of "),
        (Decay(), "Decay of "),
        (OnlyFive(), "OnlyFive of "),
    ],
)
def test_a_constraint_that_changes_its_own_result_is_named_with_its_weight(constraint, found):
    reported = weight_constraints.not_idempotent(model(constraint))
    assert reported.startswith(found)
    assert reported.endswith("dense/kernel")


def test_the_constraint_acts_at_every_micro_step_of_keras():
    """Two micro-steps without an update apply it twice: Keras's accumulation does not wait."""
    built = model(Decay())
    built.compile(keras.optimizers.SGD(0.0, gradient_accumulation_steps=8), "mse")
    before = keras.ops.convert_to_numpy(built.layers[0].kernel).copy()
    built.fit(keras.ops.ones((4, 4)), keras.ops.ones((4, 3)), batch_size=2, verbose=0)
    after = keras.ops.convert_to_numpy(built.layers[0].kernel)
    assert after == pytest.approx(before * 0.999**2, rel=1e-5)
