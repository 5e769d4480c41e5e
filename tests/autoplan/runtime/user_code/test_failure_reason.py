from __future__ import annotations

import keras
import numpy as np
import pytest

from autoplan.runtime.user_code.failure_reason import reason


class Layer(keras.layers.Layer):
    def __init__(self, raising):
        super().__init__()
        self.raising = raising

    def call(self, x):
        self.raising()
        return x


def caused(message="the table cannot be read"):
    try:
        raise MemoryError
    except MemoryError as error:
        raise RuntimeError(message) from error


def hidden():
    try:
        raise KeyError("a")
    except KeyError:
        raise ValueError("no such column") from None


def while_handling():
    try:
        raise TypeError("a traced array has no values")
    except TypeError:
        return None.no_such_name


def refuses():
    raise TypeError("float32 only\nand more")


def asserts():
    raise AssertionError  # pytest adds a message to an `assert`


def reason_of(raising):
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- each raises its own
        raising()
    return reason(caught.value)


REASONS = [
    (refuses, "TypeError: float32 only"),
    (caused, "RuntimeError: the table cannot be read (caused by MemoryError in line 22 of test_failure_reason.py)"),
    (hidden, "ValueError: no such column"),
    (
        while_handling,
        (
            "AttributeError: 'NoneType' object has no attribute 'no_such_name' "
            "(caused by TypeError: a traced array has no values)"
        ),
    ),
]


@pytest.mark.parametrize(("raising", "told"), REASONS)
def test_the_message_and_the_cause_behind_it_are_in_one_line(raising, told):
    assert reason_of(raising) == told


@pytest.mark.parametrize(("raising", "told"), REASONS)
def test_what_keras_adds_about_the_call_of_a_layer_is_left_out(raising, told):
    assert reason_of(lambda: Layer(raising)(keras.Input((3,)))) == told


@pytest.mark.parametrize("call", [asserts, lambda: Layer(asserts)(keras.Input((3,)))])
def test_an_exception_without_a_message_is_shown_with_the_place_that_raised_it(call):
    with pytest.raises(AssertionError) as caught:
        call()
    assert reason(caught.value).startswith("AssertionError in line ")


def built_on_synthetic_values():
    model = keras.Sequential([Layer(lambda: None)])
    model.compile("sgd", "mse")
    model.load_weights("no such folder/weights.txt")


@pytest.mark.parametrize(
    "call",
    [
        lambda: keras.layers.Dense(-1),
        lambda: keras.Sequential([keras.Input((3,))]).fit(np.ones((4, 3))),
        built_on_synthetic_values,
        lambda: keras.layers.Conv2D(3, 3)(keras.Input((3,))),
    ],
)
def test_texts_of_keras_are_marked(call):
    assert reason_of(call).startswith("Keras says: ValueError: ")


def test_an_exception_that_was_never_raised_has_its_type():
    assert reason(MemoryError()) == "MemoryError"


def test_lines_that_only_say_where_are_left_out():
    message = "Graph execution error:\n\nDetected at node add\n  File x\n<stack>\n\x1b[1mNo shapes\x1b[0m"
    assert reason(ValueError(message)) == "ValueError: No shapes"
