"""Abstract variables: their memory, and what a script can still do with them."""

import json
import os
import subprocess
import sys

import keras
import numpy as np

from autoplan.worker.trace.abstract_variables import abstract_variables

HUGE = """
import json, resource
import keras
from autoplan.worker.trace.abstract_variables import abstract_variables
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with abstract_variables():
    model = keras.Sequential([keras.Input((8192,))] + [keras.layers.Dense(8192) for _ in range(16)])
    model.compile(optimizer="adam", loss="mse")
    model.optimizer.build(model.trainable_variables)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"parameters": model.count_params(), "grown_bytes": 1024 * (after - before)}))
"""


def test_four_gibibytes_of_weights_and_eight_of_slots_take_no_memory():
    done = subprocess.run(
        [sys.executable, "-c", HUGE], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["parameters"] == 16 * (8192 * 8192 + 8192)
    assert found["grown_bytes"] < 200 * 2**20


def test_reading_an_abstract_variable_gives_its_initial_value():
    with abstract_variables():
        layer = keras.layers.Dense(3, kernel_initializer=keras.initializers.RandomNormal(seed=1))
        layer.build((None, 2))
        assert layer.kernel._value is None
        first, second = np.array(layer.kernel), np.array(layer.kernel)
    real = keras.layers.Dense(3, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    real.build((None, 2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, np.array(real.kernel))


class MadeInItsCall(keras.layers.Layer):
    """A layer without `build`: its sublayer creates weights during shape inference, which are initialized later."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens = keras.layers.Embedding(50, 8, embeddings_initializer=keras.initializers.RandomNormal(seed=1))

    def call(self, tokens):
        return self.tokens(tokens)


def test_weights_created_during_shape_inference_are_abstract():
    with abstract_variables():
        inputs = keras.Input((4,), dtype="int32")
        made = MadeInItsCall()
        model = keras.Model(inputs, keras.layers.Dense(2)(made(inputs)))
        assert [weight._value for weight in model.weights] == [None] * 3
        assert model(np.ones((3, 4), "int32")).shape == (3, 4, 2)
        value = np.array(made.tokens.embeddings)
    real = MadeInItsCall()
    real(np.ones((3, 4), "int32"))
    np.testing.assert_array_equal(value, np.array(real.tokens.embeddings))


def test_concrete_values_are_stored():
    with abstract_variables():
        counter = keras.Variable(np.int32(5))
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
        layer.set_weights([np.ones((2, 3)), np.zeros(3)])
    assert int(counter.value) == 5
    np.testing.assert_array_equal(np.array(layer.kernel), np.ones((2, 3)))


def test_a_model_can_be_called():
    with abstract_variables():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        assert model(np.ones((3, 4), "float32")).shape == (3, 2)


def test_after_the_context_variables_have_values_even_after_an_error():
    try:
        with abstract_variables():
            raise RuntimeError
    except RuntimeError:
        pass
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    assert layer.kernel._value is not None
