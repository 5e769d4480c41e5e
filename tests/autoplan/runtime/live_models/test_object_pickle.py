"""Unpickled Keras objects predict and train as the originals do."""

import threading

import keras
import numpy as np
import pytest

from autoplan.runtime.live_models import object_pickle
from tests.models import live


def sent(value):
    return object_pickle.loads(object_pickle.dumps(value)[0])


@pytest.mark.parametrize("kind", live.KINDS)
def test_an_unpickled_model_predicts_and_trains_the_same(kind):
    model, x, y = live.trained(kind)
    again = sent(model)
    assert again is not model
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    for one in (model, again):
        for generator in (g for layer in one._flatten_layers() for g in layer._seed_generators):
            generator.state.assign([1, 0])
        one.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations) == 9
    for ours, theirs in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_model_that_was_never_called_can_be_pickled():
    model = live.subclassed()
    x, y = live.samples()
    sent(model).fit(x, y, verbose=0)
    assert not model.built


def test_an_unpickled_model_shares_no_variables():
    model, x, y = live.trained("sequential")
    before = model.get_weights()
    sent(model).fit(x, y, verbose=0)
    for ours, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, kept)


class Adversaries(keras.Model):
    """A model with two optimizers, like a GAN."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = keras.layers.Dense(2), keras.layers.Dense(1)
        self.of_judge = keras.optimizers.Adam(0.1)

    def call(self, x):
        return self.judge(self.maker(x))


def test_optimizers_find_their_variables_again():
    model = Adversaries()
    model(np.zeros((1, 3), "float32"))
    model.of_judge.build(model.judge.trainable_variables)
    again = sent(model)
    weight = again.judge.trainable_variables[0]
    before = weight.numpy()
    again.of_judge.apply([keras.ops.ones(v.shape) for v in again.judge.trainable_variables])
    np.testing.assert_allclose(weight.numpy(), before - 0.1, rtol=1e-5)


def test_tracked_objects_are_tracked_once_after_unpickling():
    again = sent(live.trained("subclassed")[0])
    count = len(again.variables)
    again.head = again.head
    assert len(again.variables) == count


def test_a_graph_can_be_serialized_again():
    model = live.trained("functional")[0]
    assert len(sent(model).get_config()["layers"]) == len(model.get_config()["layers"])


def test_unspecified_seeds_are_drawn_again_and_specified_seeds_stay():
    chosen, drawn = keras.random.SeedGenerator(7), keras.random.SeedGenerator()
    state = drawn.state.numpy()
    chosen_again, drawn_again = sent((chosen, drawn))
    np.testing.assert_array_equal(chosen_again.state.numpy(), chosen.state.numpy())
    assert (drawn_again.state.numpy() != state).any()


def test_large_variables_are_stored_in_files():
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256)])
    payload, digests = object_pickle.dumps(model)
    assert len(digests) == 1
    assert len(payload) < 100_000


def test_low_precision_variables_are_restored():
    layer = keras.layers.Dense(512, dtype="bfloat16")
    layer.build((None, 512))
    again = sent(layer)
    assert again.kernel.dtype == "bfloat16"
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(again.kernel).astype("float32"),
        keras.ops.convert_to_numpy(layer.kernel).astype("float32"),
    )


def test_an_attribute_that_cannot_be_pickled_is_named():
    model = live.trained("subclassed")[0]
    model.blocks[1].name, model.blocks[1].lock = "mine", threading.Lock()
    with pytest.raises(TypeError):
        object_pickle.dumps(model)
    assert object_pickle.first_unpicklable(model) == "attribute 'lock' of layer 'mine', a lock"


def test_a_deep_graph_can_be_pickled():
    """Pickling is recursive, and each layer refers to the layers before and after it."""
    inputs = keras.Input((2,))
    x = inputs
    for _ in range(300):
        x = keras.layers.Average()([x, x])
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    again = sent(model)
    data = np.ones((1, 2), "float32")
    np.testing.assert_array_equal(again(data), model(data))
    assert len(again.get_config()["layers"]) == 302
    first = again.layers[1]
    assert first._outbound_nodes[0].operation is again.layers[2]
