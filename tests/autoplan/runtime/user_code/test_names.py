"""Names in the code of the user's own classes."""

import functools

import keras

from autoplan.runtime.user_code.names import code_of, names_in, names_in_own_code, own_bases


class Base(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.0)
        return inputs


class Derived(Base):
    @functools.cache  # noqa: B019 -- a decorated function
    def later(self):
        return [lambda value: value.within for _ in range(2)]


def test_bases_of_keras_are_left_out():
    assert own_bases(Derived) == [Derived, Base]
    assert own_bases(keras.layers.Dense) == []


def test_names_of_own_methods_and_inner_functions_are_found():
    assert {"add_loss", "within"} <= names_in_own_code(Derived)
    assert "add_weight" not in names_in_own_code(Derived)


def test_only_functions_have_code():
    assert code_of(3) is None
    assert list(names_in(None)) == []
    assert "add_loss" in set(names_in(code_of(Base.call)))
