"""A fit under another batch makes the same updates from the same samples, with every remainder of an epoch."""

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, rebatch
from autoplan.runtime.fit import padding_is_exact
from autoplan.runtime.optimizers import adapt_optimizer
from cost_models.config import Batch


def linear_model(*, metrics=()):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=list(metrics))
    return model


def arrays(samples):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, 4), dtype="float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def train(arguments, script, wanted, *, can_pad=True, metrics=()):
    """Return weights and number of updates after a fit with the batch `wanted` instead of `script`."""
    model = linear_model(metrics=metrics)
    changed = rebatch.rebatched(arguments, data_facts.describe(arguments), script, wanted, can_pad=can_pad)
    model.optimizer = adapt_optimizer(model.optimizer, script, wanted)
    np.random.seed(3)
    model.fit(**changed, verbose=0)
    return [w.numpy() for w in model.trainable_variables], int(model.optimizer.iterations)


def agree(one, two):
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("samples", "accumulation", "mode"),
    [(96, 4, None), (90, 4, "pad"), (92, 4, "split"), (92, 1, None), (71, 8, "pad"), (97, 8, "pad"), (64, 32, None)],
)
def test_updates_equal_the_scripts_own(samples, accumulation, mode):
    x, y = arrays(samples)
    script, wanted = Batch(32), Batch(32 // accumulation, accumulation=accumulation)
    assert rebatch.remainder_mode(samples, wanted, can_pad=True) == mode
    arguments = {"x": x, "y": y, "batch_size": 32, "epochs": 3}
    own, own_updates = train(arguments, script, script)
    changed, updates = train(arguments, script, wanted)
    assert updates == own_updates == 3 * -(-samples // 32)
    assert agree(own, changed)


def test_a_script_that_accumulates_can_be_given_whole_batches():
    x, y = arrays(96)
    script, wanted = Batch(4, accumulation=8), Batch(32)
    arguments = {"x": x, "y": y, "batch_size": 4, "epochs": 2}
    own, own_updates = train(arguments, script, script)
    changed, updates = train(arguments, script, wanted)
    assert updates == own_updates == 6
    assert agree(own, changed)


def test_sample_weights_and_class_weights_survive_padding():
    x, y = arrays(70)
    weight = np.linspace(0.5, 2.0, 70).astype("float32")
    script, wanted = Batch(32), Batch(8, accumulation=4)
    for extra in ({"sample_weight": weight}, {"class_weight": {0: 1.0, 1: 3.0}}):
        arguments = {"x": x, "y": y, "batch_size": 32, "epochs": 2, **extra}
        own, _ = train(arguments, script, script)
        changed, _ = train(arguments, script, wanted)
        assert agree(own, changed)


def test_without_exact_padding_only_rows_that_do_not_divide_are_dropped():
    samples, wanted = 71, Batch(4, accumulation=8)
    assert rebatch.remainder_mode(samples, wanted, can_pad=False) == "drop"
    assert rebatch.dropped_samples(samples, wanted, "drop") == 7
    x, y = arrays(samples)
    batches = rebatch.EffectiveBatches((x, y, None), wanted, mode="drop", shuffle=False)
    rows = sum(len(batches[index][0]) for index in range(len(batches)))
    assert rows == 64
    samples = 77  # 13 left: 8 micro-batches of one row, 5 rows dropped
    batches = rebatch.EffectiveBatches((*arrays(samples), None), wanted, mode="drop", shuffle=False)
    assert [len(batches[index][0]) for index in range(len(batches))] == [4] * 16 + [1] * 8


def test_validation_split_keeps_the_same_rows():
    x, y = arrays(100)
    arguments = {"x": x, "y": y, "batch_size": 32, "validation_split": 0.25}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(32), Batch(8, accumulation=4), can_pad=True
    )
    assert len(changed["validation_data"][0]) == 25
    assert np.array_equal(changed["validation_data"][0], x[75:])
    rows = [changed["x"][index][0] for index in range(len(changed["x"]))]
    real = np.concatenate(rows)[:75]
    assert np.array_equal(np.sort(real, axis=0), np.sort(x[:75], axis=0))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [3, 2])
def test_counted_steps_that_reach_the_end_of_the_rows_make_the_same_partial_updates(steps):
    """With three steps every epoch ends with the rows, with two every second one does."""
    x, y = arrays(70)
    script, wanted = Batch(32), Batch(16, accumulation=2)
    arguments = {"x": x, "y": y, "batch_size": 32, "steps_per_epoch": steps, "epochs": 4}
    own, own_updates = train(arguments, script, script)
    changed, updates = train(arguments, script, wanted)
    assert updates == own_updates == (12 if steps == 3 else 6)
    assert agree(own, changed)


def test_steps_per_epoch_covers_the_same_samples():
    x, y = arrays(128)
    arguments = {"x": x, "y": y, "batch_size": 32, "steps_per_epoch": 3}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(32), Batch(8, accumulation=4), can_pad=True
    )
    assert (changed["batch_size"], changed["steps_per_epoch"]) == (8, 12)


@pytest.mark.parametrize("samples", [96, 90, 77])
def test_a_dataset_is_split_into_the_micro_steps_of_each_update(samples):
    tf = pytest.importorskip("tensorflow")
    x, y = arrays(samples)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    arguments = {"x": dataset}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(32), Batch(8, accumulation=4), can_pad=False
    )
    pieces = [piece.numpy() for piece, _ in changed["x"]]
    assert len(pieces) % 4 == 0
    whole, rest = divmod(samples, 32)
    assert [len(piece) for piece in pieces] == [8] * (4 * whole) + [rest // 4] * (4 if rest else 0)
    assert np.array_equal(np.concatenate(pieces), x[: 32 * whole + rest // 4 * 4])


def test_small_batches_of_a_dataset_are_concatenated():
    tf = pytest.importorskip("tensorflow")
    x, y = arrays(90)
    arguments = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(8)}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(8, accumulation=4), Batch(32), can_pad=False
    )
    assert [len(piece) for piece, _ in changed["x"]] == [32, 32, 26]


def test_shuffling_within_batches_does_not_change_the_updates():
    x, y = arrays(70)
    arguments = {"x": x, "y": y, "batch_size": 32, "shuffle": "batch"}
    own, _ = train(arguments, Batch(32), Batch(32))
    changed, _ = train(arguments, Batch(32), Batch(8, accumulation=4))
    assert agree(own, changed)


def test_without_targets_rows_are_dropped_instead_of_padded():
    x, _ = arrays(90)
    arguments = {"x": x, "batch_size": 32}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(32), Batch(8, accumulation=4), can_pad=True
    )
    assert sum(len(changed["x"][index][0]) for index in range(len(changed["x"]))) == 88


def test_padding_is_not_exact_if_rows_of_weight_zero_change_an_update():
    x, y = arrays(90)
    arguments = {"x": x, "y": y, "batch_size": 32}

    def exact(model):
        return padding_is_exact(model, arguments, data_facts.describe(arguments))

    assert exact(linear_model())
    assert not exact(linear_model(metrics=["mae"]))
    normed = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    normed.compile("sgd", "mse")
    assert not exact(normed)
    masked = keras.Sequential([keras.layers.Input((4,)), keras.layers.Embedding(9, 2, mask_zero=True)])
    masked.compile("sgd", "mse")
    assert not exact(masked)
