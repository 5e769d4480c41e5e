"""What a model holds goes over to another one of the same code."""

import keras
import numpy as np
import pytest

from autoplan.runtime.live_models import state
from tests.models import live


def test_weights_slots_and_counters_go_over():
    model, x, y = live.trained("sequential")
    other = live.sequential()
    state.give(other, state.take(model), seeds=True)
    for one in (model, other):
        one.fit(x, y, batch_size=32, shuffle=False, verbose=0)
    assert int(other.optimizer.iterations) == 6
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_was_taken_does_not_change_with_the_model():
    model, x, y = live.trained("sequential")
    taken, before = state.take(model), model.get_weights()
    model.fit(x, y, verbose=0)
    state.give(model, taken, seeds=False)
    for ours, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, kept)


@pytest.mark.parametrize("seeds", [True, False])
def test_seeds_go_over_where_asked(seeds):
    first, second = live.functional(), live.functional()
    states = [m.get_layer("drop").seed_generator.state for m in (first, second)]
    states[0].assign([5, 3])
    own = states[1].numpy()
    state.give(second, state.take(first), seeds=seeds)
    np.testing.assert_array_equal(states[1].numpy(), [5, 3] if seeds else own)


def test_slots_of_another_shape_are_left_alone():
    model, _, _ = live.trained("sequential")
    other = live.sequential()
    other.compile("adam", "mse")
    state.give(other, state.take(model), seeds=False)
    assert int(other.optimizer.iterations) == 0
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])


def test_the_loss_scale_goes_over():
    def half():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
        return model

    model, other = half(), half()
    model.fit(*live.samples(), verbose=0)
    model.optimizer.dynamic_scale.assign(4.0)
    state.give(other, state.take(model), seeds=False)
    assert float(other.optimizer.dynamic_scale) == 4.0
    assert int(other.optimizer.inner_optimizer.iterations) == 3


def test_what_a_layer_learns_besides_weights_goes_over():
    def normalized():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Normalization(), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    model, other = normalized(), normalized()
    x, _ = live.samples()
    model.layers[0].adapt(x * 3 + 1)
    state.give(other, state.take(model), seeds=False)
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_model_of_other_layers_is_told():
    with pytest.raises(ValueError, match=r"it has \d+ layers, and the state is of \d+"):
        state.give(live.functional(), state.take(live.sequential()), seeds=False)
