"""Schedules, averages and counters of an optimizer with another number of micro-steps per update."""

import keras
import numpy as np
import pytest

from autoplan.runtime.optimizers import PerUpdateSchedule, accumulation_of, adapt_optimizer, innermost
from cost_models.config import Batch

ONE, FOUR = Batch(32), Batch(8, accumulation=4)


def fit(optimizer, batch_size, *, epochs=2):
    """Train a small model in order; returns its weights."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 3), dtype="float32")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model


def weights(model):
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables])


@pytest.mark.parametrize(("script", "wanted"), [(ONE, FOUR), (FOUR, ONE), (Batch(16, accumulation=2), FOUR)])
def test_every_update_has_the_same_learning_rate(script, wanted):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=7, decay_rate=0.5)
    retimed = PerUpdateSchedule(schedule, wanted.accumulation, wanted.effective, script.accumulation, script.effective)
    for update in range(40):
        own = float(schedule(update * script.accumulation + script.accumulation - 1))
        seen = {float(retimed(update * wanted.accumulation + micro)) for micro in range(wanted.accumulation)}
        assert seen == {own}


def test_a_larger_effective_batch_evaluates_the_schedule_at_the_same_sample():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=100, end_learning_rate=0.0)
    retimed = PerUpdateSchedule(schedule, 1, 128, 1, 32)
    assert [float(retimed(update)) for update in (0, 1, 10)] == [float(schedule(s)) for s in (0, 4, 40)]


def test_training_with_a_schedule_makes_the_same_updates():
    def optimizer():
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.05, 8, warmup_target=0.1, warmup_steps=3))

    own = fit(optimizer(), 32)
    changed = fit(adapt_optimizer(optimizer(), ONE, FOUR), 8)
    assert int(changed.optimizer.iterations) == int(own.optimizer.iterations) == 8
    assert np.allclose(weights(own), weights(changed), rtol=1e-5, atol=1e-6)


def test_a_saved_schedule_can_be_loaded():
    schedule = PerUpdateSchedule(keras.optimizers.schedules.ExponentialDecay(0.1, 7, 0.5), 4, 32, 1, 32)
    optimizer = keras.optimizers.SGD(schedule)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert [float(again._learning_rate(m)) for m in range(20)] == [float(schedule(m)) for m in range(20)]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_rebuilt_optimizer_has_the_same_state(scaled):
    def optimizer():
        inner = keras.optimizers.AdamW(0.05, weight_decay=0.01)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0) if scaled else inner

    continued = fit(optimizer(), 32)
    own, seen = weights(continued), int(continued.optimizer.iterations)
    assert seen == 8
    retimed = adapt_optimizer(continued.optimizer, ONE, FOUR)
    assert accumulation_of(retimed) == 4
    assert int(retimed.iterations) == 8
    assert int(innermost(retimed)._iterations) == 32
    continued.optimizer = retimed
    continued.train_function = None
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 3), dtype="float32")
    y = x.sum(axis=1, keepdims=True)
    continued.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    straight = fit(optimizer(), 32, epochs=3)
    assert not np.allclose(own, weights(continued), rtol=1e-3)
    assert np.allclose(weights(straight), weights(continued), rtol=1e-4, atol=1e-6)


def test_slots_are_not_doubled_under_loss_scaling():
    model = fit(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05)), 32)
    plain = len(model.optimizer.variables)
    retimed = adapt_optimizer(model.optimizer, ONE, FOUR)
    assert len(retimed.variables) == plain + len(model.trainable_variables)  # one accumulator a weight, nothing else
    assert len(adapt_optimizer(retimed, FOUR, ONE).variables) == plain


def test_the_moving_average_decays_at_the_same_rate():
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=10)
    retimed = adapt_optimizer(optimizer, ONE, FOUR)
    assert retimed.ema_momentum**4 == pytest.approx(0.9)
    assert retimed.ema_overwrite_frequency == 10  # counted in updates, of which there are as many as before


class Own(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that nobody registered, and that has no config."""

    def __call__(self, step):
        return 0.1 / (1.0 + keras.ops.cast(step, "float32"))


def test_a_rebuilt_optimizer_has_a_schedule_of_a_custom_class():
    model = fit(keras.optimizers.SGD(Own()), 32)
    retimed = adapt_optimizer(model.optimizer, ONE, FOUR)
    assert isinstance(retimed._learning_rate, PerUpdateSchedule)
    assert isinstance(retimed._learning_rate.schedule, Own)
    assert len(retimed.variables) == len(model.optimizer.variables) + len(model.trainable_variables)  # accumulators
