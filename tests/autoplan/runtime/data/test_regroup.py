"""Regrouped batches contain every sample once, in order, in the updates of the script."""

import itertools
import math

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, lookahead, rebatch
from autoplan.runtime.data.regroup import Regrouping, concatenate
from autoplan.runtime.optimizers import adapt_optimizer
from cost_models.config import Batch

PAIRS = [
    (Batch(8), Batch(2, accumulation=4)),
    (Batch(8), Batch(4, accumulation=2)),
    (Batch(2, accumulation=4), Batch(8)),
    (Batch(2, accumulation=4), Batch(4, accumulation=2)),
    (Batch(4, accumulation=2), Batch(2, accumulation=4)),
    (Batch(8), Batch(3, accumulation=4)),
    (Batch(8), Batch(24)),
]


def batches_of(sizes):
    ends = list(itertools.accumulate(sizes))
    return [(np.arange(end - size, end), np.arange(end - size, end) * 2) for size, end in zip(sizes, ends, strict=True)]


def rows_of(batches):
    return [row for batch in batches for row in batch[0].tolist()]


@pytest.mark.parametrize(("script", "wanted"), PAIRS)
@pytest.mark.parametrize("last", range(1, 9))
def test_every_row_is_yielded_once_in_order_except_rows_that_do_not_divide(script, wanted, last):
    sizes = [script.global_size] * 5 + [min(last, script.global_size)]
    regrouping = Regrouping(script, wanted)
    micro = list(regrouping.micro_steps(batches_of(sizes)))
    assert len(micro) % wanted.accumulation == 0
    assert len(rows_of(micro)) + regrouping.dropped_rows == sum(sizes)
    assert rows_of(micro) == sorted(rows_of(micro))
    assert all(np.array_equal(y, 2 * x) for x, y in micro)


@pytest.mark.parametrize(
    ("script", "wanted"), [(script, wanted) for script, wanted in PAIRS if script.effective == wanted.effective]
)
def test_a_partial_batch_before_the_last_stays_in_its_update(script, wanted):
    """`fit` shuffles the batches of a PyDataset, the last one among them."""
    sizes = [script.global_size] * 8
    sizes[1] = script.global_size // 2
    batches, taken, pieces = batches_of(sizes), script.accumulation, wanted.accumulation
    micro = list(Regrouping(script, wanted).micro_steps(batches))
    own = [concatenate(batches[at : at + taken]) for at in range(0, len(batches), taken)]
    ours = [concatenate(micro[at : at + pieces]) for at in range(0, len(micro), pieces)]
    for theirs, mine in zip(own, ours, strict=True):
        assert np.array_equal(theirs[0][: len(theirs[0]) // pieces * pieces], mine[0])


@pytest.mark.parametrize(("script", "wanted"), PAIRS)
@pytest.mark.parametrize("padded", [False, True])
def test_micro_steps_are_counted_before_an_epoch(script, wanted, padded):
    full = script.global_size
    for batches, last in itertools.product(range(1, 7), range(1, full + 1)):
        regrouping = Regrouping(script, wanted, padded=padded)
        orders = [[full] * at + [last] + [full] * (batches - 1 - at) for at in range(batches)]
        found = [len(list(regrouping.micro_steps(batches_of(order)))) for order in orders]
        assert regrouping.micro_steps_per_epoch(batches, last, shuffled=False) == found[-1]
        expected = found[0] if len(set(found)) == 1 else None
        assert regrouping.micro_steps_per_epoch(batches, last, shuffled=True) == expected


def test_the_weights_of_a_padded_update_sum_to_those_of_a_full_update():
    regrouping = Regrouping(Batch(8), Batch(2, accumulation=4), padded=True)
    full, short = batches_of([8, 6])
    micro = list(regrouping.micro_steps([full, (*short, np.full(6, 3.0, "float32"))]))
    assert [len(batch[0]) for batch in micro] == [2] * 8
    assert np.array_equal(np.concatenate([weight for *_, weight in micro[:4]]), np.ones(8))
    assert np.allclose(np.concatenate([weight for *_, weight in micro[4:]]), [4.0] * 6 + [0.0] * 2)


def linear_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


class Rows(keras.utils.PyDataset):
    def __init__(self, samples, size, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((samples, 4), dtype="float32")
        self.y = (self.x.sum(axis=1, keepdims=True) > 0).astype("float32")
        self.size, self.ended = size, 0

    def __len__(self):
        return math.ceil(len(self.x) / self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.ended += 1


def over_and_over(dataset):
    while True:
        yield from dataset


def train(arguments, script, wanted, *, can_pad=True):
    model = linear_model()
    arguments = lookahead.buffer_first_batch(arguments)
    changed = rebatch.rebatched(arguments, data_facts.describe(arguments), script, wanted, can_pad=can_pad)
    model.optimizer = adapt_optimizer(model.optimizer, script, wanted)
    model.fit(**changed, verbose=0)
    return [w.numpy() for w in model.trainable_variables], int(model.optimizer.iterations)


def assert_trains_the_same(make, script, wanted, **more):
    own, own_updates = train(make(), script, script)
    ours, updates = train(make(), script, wanted, **more)
    assert updates == own_updates > 0
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(own, ours, strict=True))


@pytest.mark.parametrize(
    ("script", "wanted", "samples", "workers"),
    [
        (Batch(32), Batch(8, accumulation=4), 128, 2),
        (Batch(32), Batch(8, accumulation=4), 92, 2),  # 28 left: four micro-steps of 7
        (Batch(32), Batch(8, accumulation=4), 90, 1),  # 26 left: filled up with weights of zero
        (Batch(4, accumulation=8), Batch(32), 128, 1),
    ],
)
def test_a_dataset_trains_the_same_shuffled_as_fit_shuffles_it(script, wanted, samples, workers):
    made = []

    def make():
        made.append(Rows(samples, script.global_size, workers=workers))
        return {"x": made[-1], "epochs": 3, "class_weight": {0: 1.0, 1: 2.0}}

    assert_trains_the_same(make, script, wanted)
    assert made[0].ended == made[1].ended


@pytest.mark.parametrize(
    ("script", "wanted", "samples"),
    [
        (Batch(32), Batch(8, accumulation=4), 90),
        (Batch(4, accumulation=8), Batch(32), 128),  # eight batches make the first update, and Keras reads it twice
        (Batch(16, accumulation=2), Batch(8, accumulation=4), 128),
    ],
)
def test_a_generator_trains_the_same(script, wanted, samples):
    def make():
        rows = Rows(samples, script.global_size)
        return {"x": over_and_over(rows), "steps_per_epoch": len(rows), "epochs": 2, "shuffle": False}

    assert_trains_the_same(make, script, wanted)


def test_a_generator_with_an_end_is_read_to_it():
    def make():
        return {"x": (batch for batch in Rows(96, 32)), "shuffle": False}

    with pytest.warns(UserWarning, match="ran out of data"):
        assert_trains_the_same(make, Batch(32), Batch(8, accumulation=4))


def test_dropped_rows_are_counted():
    arguments = {"x": Rows(90, 32), "shuffle": False}
    facts = data_facts.describe(arguments)
    wanted = Batch(8, accumulation=4)
    changed = rebatch.rebatched(arguments, facts, Batch(32), wanted, can_pad=False)
    sizes = [len(batch[0]) for batch in changed["x"].get_numpy_iterator()]
    assert sizes == [8] * 8 + [6] * 4
    assert changed["x"].dropped_rows == 2
    assert changed["x"].num_batches == 12


def test_steps_per_epoch_of_an_endless_dataset_are_converted():
    class Endless(Rows):
        @property
        def num_batches(self):
            return None

        def __getitem__(self, index):
            return super().__getitem__(index % 4)

    def make():
        return {"x": Endless(128, 32), "steps_per_epoch": 3, "epochs": 3, "shuffle": False}

    assert_trains_the_same(make, Batch(32), Batch(8, accumulation=4))


def test_the_tf_data_iterator_yields_the_same_batches():
    tf = pytest.importorskip("tensorflow")
    arguments = {"x": Rows(90, 32), "shuffle": False}
    changed = rebatch.rebatched(
        arguments, data_facts.describe(arguments), Batch(32), Batch(8, accumulation=4), can_pad=True
    )
    pieces = list(changed["x"].get_tf_dataset())
    assert [tuple(part.shape) for part in pieces[0]] == [(8, 4), (8, 1), (8,)]
    assert len(pieces) == changed["x"].num_batches == 12
    assert float(tf.reduce_sum(pieces[-1][2])) == pytest.approx(2 * 32 / 26)
