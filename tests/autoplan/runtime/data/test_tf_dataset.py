"""A tf.data pipeline is split into the micro-steps of each update, for every structure of its elements."""

import keras
import numpy as np
import pytest
from keras.src.trainers.data_adapters import get_data_adapter

from autoplan.runtime.data import data_facts, rebatch, tf_dataset
from autoplan.runtime.optimizers import adapt_optimizer
from cost_models.config import Batch

tf = pytest.importorskip("tensorflow")
WHOLE, CUT = Batch(32), Batch(8, accumulation=4)


def arrays(samples):
    x = np.random.default_rng(0).standard_normal((samples, 4), dtype="float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def cut(dataset, *, script=WHOLE, wanted=CUT, can_pad=False, **arguments):
    arguments = {"x": dataset, **arguments}
    return rebatch.rebatched(arguments, data_facts.describe(arguments), script, wanted, can_pad=can_pad)


def test_elements_keep_their_structure():
    x, y = arrays(64)
    for element in ({"x": x, "y": {"a": y}}, x, ({"x": x},), (x, y, y[:, 0])):
        dataset = tf.data.Dataset.from_tensor_slices(element).batch(32)
        own, ours = next(iter(dataset)), list(cut(dataset)["x"])
        keras.tree.assert_same_structure(own, ours[0])
        assert len(ours) == 8
        glued = keras.tree.map_structure(lambda *pieces: np.concatenate(pieces), *ours[:4])
        keras.tree.map_structure(np.testing.assert_array_equal, glued, own)


def test_a_partial_batch_of_an_endless_pipeline_stays_one_update():
    x, y = arrays(76)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()
    changed = cut(dataset, steps_per_epoch=3)
    assert changed["steps_per_epoch"] == 12
    pieces = [piece.numpy() for piece, _ in changed["x"].take(24)]
    assert [len(piece) for piece in pieces] == ([8] * 8 + [3] * 4) * 2
    assert np.array_equal(np.concatenate(pieces[:12]), x)


def weights_after(changed, script, wanted):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.optimizer = adapt_optimizer(model.optimizer, script, wanted)
    model.fit(**changed, shuffle=False, verbose=0)
    return [w.numpy() for w in model.trainable_variables], int(model.optimizer.iterations)


@pytest.mark.parametrize(
    "more", [{}, {"class_weight": {0: 1.0, 1: 3.0}}, {"steps_per_epoch": 3}], ids=["plain", "class weights", "steps"]
)
def test_a_partial_batch_that_does_not_divide_is_padded(more):
    x, y = arrays(90)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    dataset = dataset.repeat() if "steps_per_epoch" in more else dataset
    own, own_updates = weights_after({"x": dataset, "epochs": 2, **more}, WHOLE, WHOLE)
    changed = cut(dataset, can_pad=True, epochs=2, **more)
    assert [len(part) for part in next(iter(changed["x"]))] == [8, 8, 8]
    ours, updates = weights_after(changed, WHOLE, CUT)
    assert updates == own_updates == 6
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(own, ours, strict=True))


def test_full_batches_have_a_known_length_and_no_weights():
    x, y = arrays(64)
    changed = cut(tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True), can_pad=True)
    assert int(changed["x"].cardinality()) == 8
    assert len(changed["x"].element_spec) == 2


@pytest.mark.parametrize(
    ("samples", "padded", "sizes"),
    [(80, False, [8] * 8 + [4] * 4), (70, False, [8] * 8 + [1] * 4), (70, True, [8] * 12), (66, False, [8] * 8)],
)
def test_arrays_are_split_into_the_micro_steps_of_each_update(samples, padded, sizes):
    x, y = arrays(samples)
    mode = "pad" if padded else "split"
    count = rebatch.micro_steps_per_epoch(samples, CUT, mode)
    tf.random.set_seed(5)
    found = tf_dataset.micro_batches((x, y, None), CUT, count, padded=padded, shuffle=True)
    tf.random.set_seed(5)
    own = get_data_adapter(x, y, batch_size=32, shuffle=True).get_tf_dataset()
    assert int(found.cardinality()) == count == len(sizes)
    epoch = list(found)
    assert [len(batch[0]) for batch in epoch] == sizes
    order, rows = (np.concatenate([batch[0] for batch in batches]) for batches in (own, epoch))
    kept = min(samples, sum(sizes))
    np.testing.assert_array_equal(rows[:kept], order[:kept])
    if padded:
        update = np.concatenate([batch[2] for batch in epoch[8:]])
        np.testing.assert_allclose(update, [32 / 6] * 6 + [0] * 26, rtol=1e-6)


def test_a_stated_batch_is_found_without_reading():
    def rows():
        raise AssertionError("it was read")
        yield

    unread = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((4,)))
    batched = unread.shuffle(9).batch(32)
    assert data_facts.describe({"x": batched}).batch == 32
    assert tf_dataset.stated_batch(batched.cache().shuffle(2).repeat().take(3).skip(1).prefetch(1)) == 32
    assert tf_dataset.stated_batch(unread.padded_batch(16).with_options(tf.data.Options())) == 16
    assert tf_dataset.stated_batch(unread.batch(8, num_parallel_calls=2)) == 8
    assert tf_dataset.stated_batch(unread) is None
    assert tf_dataset.stated_batch(batched.unbatch()) is None
    assert tf_dataset.stated_batch(batched.map(lambda row: row[:1])) is None
