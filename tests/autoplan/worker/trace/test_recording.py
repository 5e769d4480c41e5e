"""Recorded steps: tensors with their dtypes and shapes."""

from types import SimpleNamespace

import jax
import numpy as np

from autoplan.worker.trace.recording import Recording


def test_tensors_are_numbered_in_the_order_in_which_they_are_added():
    recording = Recording()
    values = [jax.ShapeDtypeStruct((8, 3), np.float32), jax.ShapeDtypeStruct((), "bfloat16")]
    assert [recording.add(value) for value in values] == [0, 1]
    assert recording.tensors == [("float32", (8, 3)), ("bfloat16", ())]


def test_typed_random_keys_and_tokens_have_names_of_their_own():
    recording = Recording()
    recording.add(SimpleNamespace(dtype="key<fry>", shape=(2,)))
    recording.add(object())
    assert recording.tensors == [("key", (2,)), ("token", ())]
