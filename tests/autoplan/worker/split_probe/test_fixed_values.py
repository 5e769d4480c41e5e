from __future__ import annotations

import keras
import numpy as np
import pytest

from autoplan.worker.split_probe.fixed_values import fixed_values

DRAWS = {
    "normal": (((2, 2),), {"mean": 3.0}, 3.0),
    "uniform": (((2, 2), 1.0, 5.0), {}, 3.0),
    "randint": (((2, 2), 0, 10), {}, 5),
    "truncated_normal": (((2, 2),), {}, 0.0),
    "gamma": (((2, 2), 4.0), {}, 4.0),
    "beta": (((2, 2), 1.0, 3.0), {}, 0.25),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_returns_its_mean_and_is_recorded(name):
    arguments, options, value = DRAWS[name]

    def augment():
        return getattr(keras.random, name)(*arguments, **options, seed=keras.random.SeedGenerator(1))

    with fixed_values() as recorded:
        drawn = np.asarray(augment())
    assert drawn.shape == (2, 2)
    assert (drawn == value).all()
    assert recorded.random_draws == ["augment()"]
    assert len(np.unique(np.asarray(augment()))) > 1 or name == "randint"


def test_dropout_shuffling_and_the_likeliest_class():
    x = np.arange(6.0).reshape(2, 3)
    seed = keras.random.SeedGenerator(1)
    with fixed_values() as recorded:
        assert (np.asarray(keras.random.dropout(x, 0.5, seed=seed)) == x).all()
        assert (np.asarray(keras.random.shuffle(x, seed=seed)) == x).all()
        assert np.asarray(keras.random.categorical(x, 2, seed=seed)).tolist() == [[2, 2], [2, 2]]
        state = np.asarray(seed.state)
        assert (np.asarray(seed.next()) == state).all()
        assert (np.asarray(seed.state) == state).all()
    assert recorded.random_draws == ["test_dropout_shuffling_and_the_likeliest_class()"]


def test_layers_are_recorded_by_what_they_call():
    norm, frozen = keras.layers.BatchNormalization(name="norm"), keras.layers.BatchNormalization()
    frozen.trainable = False
    drop, never = keras.layers.Dropout(0.5, name="drop"), keras.layers.Dropout(0.0)
    model = keras.Sequential([keras.Input((3,)), norm, frozen, drop, never])
    x = np.arange(12.0, dtype="float32").reshape(4, 3)
    with fixed_values() as recorded:
        moving = np.asarray(norm.moving_mean)
        output = np.asarray(model(x, training=True))
        assert (np.asarray(norm.moving_mean) == moving).all()
        model(x, training=False)
    assert (recorded.random_draws, recorded.batch_statistics) == (["drop (Dropout)"], ["norm (BatchNormalization)"])
    np.testing.assert_allclose(output, np.asarray(model(x, training=False)), rtol=1e-6)
