"""Several seeds in one process: weights that were drawn are drawn again, and others stay."""

import keras
import numpy as np
import pytest

from autoplan.worker.measure.redraw import StartingPoint, nudge_weights, remember_initializers


@pytest.fixture(autouse=True)
def remembered():
    forget = remember_initializers()
    yield
    forget()


def made(**first):
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, **first), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def values(model):
    return [np.array(variable) for variable in [*model.variables, *model.optimizer.variables]]


def test_a_seed_draws_weights_of_the_same_kind_and_sets_everything_else_back():
    model = made()
    start = StartingPoint.of(model, given_weights=False)
    own = values(model)
    x = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    model.fit(x, x[:, :1], verbose=0)
    start.begin(2)
    second = values(model)
    kernel, bias, seed = second[0], second[1], second[2]
    assert np.std(kernel) == pytest.approx(np.std(own[0]), rel=0.1)
    assert abs(np.corrcoef(kernel.ravel(), own[0].ravel())[0, 1]) < 0.1
    assert not bias.any()
    assert seed[0] != own[2][0]
    assert int(model.optimizer.iterations) == 0
    assert not any(slot.any() for slot in second[-8:] if slot.shape)
    start.begin(3)
    assert not np.array_equal(values(model)[0], kernel)
    start.begin(2)
    assert np.array_equal(values(model)[0], kernel)


def test_a_seed_that_the_script_chose_stays():
    model = made(kernel_initializer=keras.initializers.GlorotUniform(seed=3))
    own = values(model)
    StartingPoint.of(model, given_weights=False).begin(2)
    assert np.array_equal(values(model)[0], own[0])
    assert not np.array_equal(values(model)[3], own[3])


def test_weights_that_were_loaded_cannot_be_drawn_again():
    model = made()
    model.set_weights([value + 1 for value in model.get_weights()])
    assert StartingPoint.of(model, given_weights=False) is None
    given = StartingPoint.of(model, given_weights=True)
    own = values(model)
    given.begin(2)
    assert np.array_equal(values(model)[0], own[0])
    assert values(model)[2][0] != own[2][0], "the seed of dropout is drawn again"


def test_a_nudge_is_a_last_digit():
    model = made()
    own = values(model)
    nudge_weights(model)
    moved = values(model)[0] / own[0] - 1
    assert 0 < np.abs(moved).max() < 3e-7
