"""The state of a model is copied to another model of the same code."""

import keras
import numpy as np
import pytest

from autoplan.runtime.live_models import state
from tests.models import live


def test_weights_slots_and_counters_are_copied():
    model, x, y = live.trained("sequential")
    other = live.sequential()
    state.restore(other, state.capture(model), seeds=True)
    for one in (model, other):
        one.fit(x, y, batch_size=32, shuffle=False, verbose=0)
    assert int(other.optimizer.iterations) == 6
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_captured_state_does_not_change_with_the_model():
    model, x, y = live.trained("sequential")
    taken, before = state.capture(model), model.get_weights()
    model.fit(x, y, verbose=0)
    state.restore(model, taken, seeds=False)
    for ours, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, kept)


@pytest.mark.parametrize("seeds", [True, False])
def test_seeds_are_copied_on_request(seeds):
    first, second = live.functional(), live.functional()
    states = [m.get_layer("drop").seed_generator.state for m in (first, second)]
    states[0].assign([5, 3])
    own = states[1].numpy()
    state.restore(second, state.capture(first), seeds=seeds)
    np.testing.assert_array_equal(states[1].numpy(), [5, 3] if seeds else own)


def test_slots_of_another_shape_are_not_changed():
    model, _, _ = live.trained("sequential")
    other = live.sequential()
    other.compile("adam", "mse")
    state.restore(other, state.capture(model), seeds=False)
    assert int(other.optimizer.iterations) == 0
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])


def test_the_loss_scale_is_copied():
    def half():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
        return model

    model, other = half(), half()
    model.fit(*live.samples(), verbose=0)
    model.optimizer.dynamic_scale.assign(4.0)
    state.restore(other, state.capture(model), seeds=False)
    assert float(other.optimizer.dynamic_scale) == 4.0
    assert int(other.optimizer.inner_optimizer.iterations) == 3


def test_assets_of_layers_are_copied():
    def normalized():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Normalization(), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    model, other = normalized(), normalized()
    x, _ = live.samples()
    model.layers[0].adapt(x * 3 + 1)
    state.restore(other, state.capture(model), seeds=False)
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_model_with_other_layers_is_an_error():
    with pytest.raises(ValueError, match=r"it has \d+ layers, but the state has \d+"):
        state.restore(live.functional(), state.capture(live.sequential()), seeds=False)
