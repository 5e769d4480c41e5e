"""A few updates of a real fit, from which two configurations are compared."""

import math

import keras
import numpy as np
import pytest

from autoplan.runtime import backends
from autoplan.runtime.apply import Change, apply_to_model
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.trial_fit import TrialFit
from autoplan.worker.measure.updates import run_updates
from tests.builders.observations import config

ROWS, BATCH = 68, 8
OWN = config(BATCH)


class Counter(keras.layers.Layer):
    """Counts its calls in a variable that is not trained."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs, training=False):
        if training:
            self.calls.assign(self.calls + 1)
        return inputs


class Rows(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return math.ceil(len(self.x) / BATCH)

    def __getitem__(self, index):
        rows = self.x[index * BATCH : (index + 1) * BATCH]
        return rows, rows[:, :1]


def ran(*, wanted=OWN, layers=(), optimizer=None, loss="mse", dataset=False, rows=ROWS, callbacks=None, **options):
    """Run a few updates under a configuration, from the same initial weights each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *(make() for make in layers), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss)
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    x[-4:] += 3  # rows that are noticed where they are left out
    data = {"x": Rows(x)} if dataset else {"x": x, "y": x[:, :1], "batch_size": BATCH}
    call = FitCall(1, model, {**data, "verbose": 0, "callbacks": callbacks}, keras.Model.fit)
    change = Change(OWN, wanted)
    apply_to_model(model, change)
    options = {"accumulations": [1, 2], **options}
    fit = TrialFit(call, data_facts.describe(call.arguments), change, backends.get("jax"), options, lambda _: None)
    return run_updates(fit)


def test_every_update_has_a_loss_and_training_lowers_it():
    found = ran(updates=12, rows=64)
    (run,) = found.runs
    assert len(run.losses) == run.applied == 12
    assert np.mean(run.losses[-4:]) < np.mean(run.losses[:4])
    assert run.weight_change > 0
    assert run.random_draws == []
    assert found.remainder_rows == 0


@pytest.mark.parametrize("dataset", [False, True])
def test_the_partial_last_update_of_an_epoch_is_among_them(dataset, tmp_path):
    kept = str(tmp_path / "changes.npz")
    own = ran(updates=4, dataset=dataset, changes_to=kept)
    assert own.remainder_rows == ROWS % BATCH == 4
    assert own.runs[0].losses[-1] > 2 * max(own.runs[0].losses[:-1]), "the last rows are the shifted ones"
    halves = ran(updates=4, dataset=dataset, wanted=config(4, 2), compare_with=kept)
    assert halves.runs[0].losses == pytest.approx(own.runs[0].losses, rel=1e-5)
    assert halves.compared.weights < 1e-5
    assert [one.kind for one in halves.compared.variables] == ["weight", "weight"]


def test_rows_that_one_of_the_configurations_leaves_out_are_not_compared():
    """A layer with losses of its own is not padded, so eight micro-steps leave the four rows out."""
    found = ran(updates=3, layers=[lambda: keras.layers.ActivityRegularization(0.1)], accumulations=[1, 8])
    assert found.remainder_rows == 0


def test_a_variable_that_counts_micro_steps_is_found(tmp_path):
    kept = str(tmp_path / "changes.npz")
    ran(updates=4, layers=[Counter], changes_to=kept)
    found = ran(updates=4, layers=[Counter], wanted=config(4, 2), compare_with=kept)
    (counted,) = [one for one in found.compared.variables if one.kind == "state"]
    assert counted.path.endswith("/calls")
    assert (counted.baseline_change, counted.plan_change, counted.difference) == (4, 8, 1.0)
    assert next(iter(found.runs[0].state_changes.values())) == 8


def test_batch_statistics_and_seeds_are_named_for_what_they_are(tmp_path):
    kept, layers = str(tmp_path / "changes.npz"), [keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.5)]
    first = ran(updates=4, layers=layers, changes_to=kept)
    found = ran(updates=4, layers=layers, compare_with=kept)
    kinds = {one.path.rpartition("/")[2]: one.kind for one in found.compared.variables}
    assert kinds == {
        "gamma": "weight",
        "beta": "weight",
        "kernel": "weight",
        "bias": "weight",
        "moving_mean": "batch_statistics",
        "moving_variance": "batch_statistics",
    }
    assert max(one.difference for one in found.compared.variables) == 0.0
    assert len(first.runs[0].random_draws) == 1
    assert ran(updates=1, layers=[lambda: keras.layers.Dropout(0.0)]).runs[0].random_draws == []


def test_updates_that_a_loss_scale_skips_are_not_counted():
    def huge(y, z):
        return keras.ops.mean((y - z) ** 2) * 1e30

    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**60)
    found = ran(updates=5, optimizer=scaled, loss=huge, rows=64)
    assert (len(found.runs[0].losses), found.runs[0].applied, found.runs[0].weight_change) == (5, 0, 0.0)


def test_the_same_seed_gives_the_same_losses():
    layers = [lambda: keras.layers.Dropout(0.5)]
    first, second = (ran(updates=4, seeds=[7], layers=layers).runs[0] for _ in range(2))
    assert first.losses == second.losses
    assert first.weight_change == second.weight_change
    assert first.seed == 7


def test_initial_weights_go_from_one_process_to_another(tmp_path):
    kept = str(tmp_path / "weights.npz")
    first = ran(updates=2, weights_to=kept)
    second = ran(updates=2, weights_from=kept, layers=[])
    assert second.runs[0].losses == pytest.approx(first.runs[0].losses)


def test_weights_that_are_nudged_show_how_far_rounding_goes(tmp_path):
    kept = str(tmp_path / "changes.npz")
    ran(updates=4, changes_to=kept)
    found = ran(updates=4, nudged=True, compare_with=kept)
    assert 0 < found.compared.weights < 1e-4


def test_callbacks_of_the_script_keep_every_seed_in_a_process_of_its_own():
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    assert len(ran(updates=2, seeds=[1, 2], callbacks=[each]).runs) == 1
