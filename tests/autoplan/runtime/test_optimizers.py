"""Schedules, averages and counters of an optimizer with another number of micro-steps per update."""

import keras
import numpy as np
import pytest

from autoplan.errors import ConfigError
from autoplan.runtime.optimizers import (
    PerUpdateSchedule,
    accumulation_of,
    adapt_optimizer,
    innermost,
    own_optimizers,
    updates,
    why_not_accumulating,
)
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
def test_a_built_optimizer_keeps_its_state(scaled):
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


def test_a_built_optimizer_keeps_a_schedule_of_a_custom_class():
    model = fit(keras.optimizers.SGD(Own()), 32)
    slots = len(model.optimizer.variables)
    retimed = adapt_optimizer(model.optimizer, ONE, FOUR)
    assert isinstance(retimed._learning_rate, PerUpdateSchedule)
    assert isinstance(retimed._learning_rate.schedule, Own)
    assert len(retimed.variables) == slots + len(model.trainable_variables)  # accumulators


class Mine(keras.optimizers.SGD):
    """An optimizer with an argument that `get_config` does not return."""

    def __init__(self, scale, **arguments):
        super().__init__(learning_rate=0.1 * scale, **arguments)


class WithoutConfig(keras.optimizers.Adam):
    def get_config(self):
        raise NotImplementedError


def scheduled():
    return keras.optimizers.SGD(Own())


def without_decay():
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    return optimizer


BUILT = {
    "an argument of its own": lambda: Mine(0.5),
    "no config": lambda: WithoutConfig(0.05),
    "a schedule of its own": scheduled,
    "weight decay without kernels": without_decay,
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(Mine(0.5, momentum=0.9), initial_scale=4.0),
}


@pytest.mark.parametrize(
    "epochs", [pytest.param(0, marks=pytest.mark.slow), 2], ids=["built before fit", "after 8 updates"]
)
@pytest.mark.parametrize("kind", BUILT)
def test_a_built_optimizer_accumulates_as_the_same_object(kind, epochs):
    """Split updates give the same weights as whole ones, for optimizers that cannot be made again from their config."""
    trained = []
    for batch in (ONE, FOUR):
        optimizer = BUILT[kind]()
        model = fit(optimizer, 32, epochs=epochs)
        if not epochs:
            optimizer.build(model.trainable_variables)
        slots = len(optimizer.variables)
        if batch != ONE:
            assert adapt_optimizer(optimizer, ONE, batch) is optimizer
            assert len(optimizer.variables) == slots + len(model.trainable_variables)
        model.train_function = None
        continue_fit(model, batch.global_size)
        trained.append((weights(model), int(optimizer.iterations)))
        adapt_optimizer(optimizer, batch, ONE)
        assert len(optimizer.variables) == slots
    (own, updates), (split, same_updates) = trained
    assert updates == same_updates == 4 * (epochs + 1)
    assert np.allclose(own, split, rtol=1e-4, atol=1e-6)


def continue_fit(model, batch_size):
    x = np.random.default_rng(0).standard_normal((128, 3), dtype="float32")
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=batch_size, shuffle=False, verbose=0)


def test_an_adapted_optimizer_has_its_variables_in_the_order_of_keras():
    """Keras loads the state of an optimizer by the position of its variables."""
    made = fit(keras.optimizers.Adam(0.05, use_ema=True, gradient_accumulation_steps=4), 8).optimizer
    adapted = adapt_optimizer(fit(keras.optimizers.Adam(0.05, use_ema=True), 32).optimizer, ONE, FOUR)
    kinds = [[variable.name.rsplit("_", 1)[-1] for variable in one.variables] for one in (made, adapted)]
    assert sorted(kinds[0]) == sorted(kinds[1])
    assert len(made.variables) == 2 + 4 * (1 + 1 + 2)  # counter and rate; average, accumulator and two slots a weight
    again = keras.optimizers.Adam(0.05, gradient_accumulation_steps=4)
    model = fit(keras.optimizers.Adam(0.05), 32)
    plain = adapt_optimizer(model.optimizer, ONE, FOUR)
    again.build(model.trainable_variables)
    assert [variable.path.split("/", 1)[1] for variable in again.variables] == [
        variable.path.split("/", 1)[1] for variable in plain.variables
    ]


class OwnApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([gradient / 2 for gradient in grads], trainable_variables)


class OwnBuild(keras.optimizers.SGD):
    def build(self, variables):
        self.velocities = []
        self.built = True


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (OwnApply(0.1), "the optimizer OwnApply has its own method apply, which runs at every micro-step"),
        (keras.optimizers.LossScaleOptimizer(OwnApply(0.1)), "the optimizer OwnApply has its own method apply"),
        (OwnBuild(0.1), "has its own method build, which does not call that of Keras"),
        (
            keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))),
            "MultiOptimizer has several optimizers",
        ),
        (Mine(0.5), ""),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_optimizers_to_which_accumulation_does_not_apply_are_found(optimizer, reason):
    found = why_not_accumulating(optimizer)
    assert (reason in found) if reason else found == ""


def test_an_optimizer_built_without_a_list_of_variables_is_rejected():
    optimizer = OwnBuild(0.1)
    optimizer.build([])
    with pytest.raises(
        ConfigError, match="gradient accumulation cannot be set on the optimizer OwnBuild: it was built"
    ):
        adapt_optimizer(optimizer, ONE, FOUR)


class Pair(keras.Model):
    """Trains two networks with their own optimizers; the compiled optimizer is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)

    def compile(self, first_optimizer, second_optimizer):
        super().compile()
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    def train_step(self, *arguments):
        return {}


def test_optimizers_of_a_custom_train_step_are_named():
    pair = Pair()
    pair.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    assert list(own_optimizers(pair)) == ["first_optimizer", "second_optimizer"]
    assert own_optimizers(fit(keras.optimizers.SGD(), 32, epochs=0)) == {}


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_another_reference_to_the_compiled_optimizer_is_not_named(policy):
    class Renamed(keras.Sequential):
        def compile(self, optimizer):
            super().compile(optimizer, "mse")
            self.mine = optimizer

        def train_step(self, *arguments):
            return {}

    model = Renamed([keras.layers.Input((4,)), keras.layers.Dense(1, dtype=policy)], name="renamed")
    model.dtype_policy = keras.dtype_policies.get(policy)
    model.compile(keras.optimizers.SGD())
    assert own_optimizers(model) == {}


def test_optimizers_in_lists_and_mappings_are_named_once():
    pair = Pair()
    pair.compile(keras.optimizers.Adam(), None)
    pair.several = [pair.first_optimizer, keras.optimizers.SGD()]
    pair.by_network = {"second": keras.optimizers.SGD()}
    assert list(own_optimizers(pair)) == ["first_optimizer", "several[1]", "by_network['second']"]


def test_updates_of_all_optimizers_are_counted():
    assert updates(fit(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 32)) == {"": 8}
    assert updates(fit(keras.optimizers.SGD(gradient_accumulation_steps=4), 8)) == {"": 8}
    pair = Pair()
    pair.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    pair.first_optimizer._iterations.assign(3)
    assert updates(pair) == {"": 0, "first_optimizer": 3, "second_optimizer": 0}
