"""A torch DataLoader: facts read from it, and the same rows in the same order under another batch."""

import random

import keras
import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from autoplan.runtime.data import data_facts, rebatch, torch_dataloader
from autoplan.runtime.data.regroup import Regrouping
from autoplan.runtime.optimizers import adapt_optimizer
from cost_models.config import Batch
from tests.models.loaded import CountedStream, Drawing, Pairs, Stream, rows

SCRIPT = Batch(32)
CUT = Batch(8, accumulation=4)


def described(loader, **more):
    facts = data_facts.describe({"x": loader, **more})
    return facts.kind, facts.samples, facts.batch, facts.micro_steps, facts.rebatchable


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: DataLoader(rows(100), batch_size=32), ("DataLoader", 100, 32, 4, True)),
        (lambda: DataLoader(rows(100), batch_size=32, drop_last=True), ("DataLoader", 96, 32, 3, True)),
        (
            lambda: DataLoader(rows(100), batch_size=32, sampler=SubsetRandomSampler(range(40))),
            ("DataLoader", 40, 32, 2, True),
        ),
        (
            lambda: DataLoader(rows(100), batch_sampler=BatchSampler(RandomSampler(rows(100)), 10, True)),
            ("DataLoader", 100, 10, 10, True),
        ),
        (lambda: DataLoader(Stream(100), batch_size=32), ("DataLoader", None, 32, None, True)),
        (lambda: DataLoader(CountedStream(100), batch_size=32), ("DataLoader", 100, 32, 4, True)),
        (lambda: DataLoader(rows(6), batch_sampler=Pairs()), ("DataLoader", 6, 2, 3, False)),
        (lambda: DataLoader([rows(100)[:20]] * 5, batch_size=None), ("DataLoader", 100, 20, 5, False)),
    ],
)
def test_facts_about_a_loader_are_read(make, expected):
    assert described(make()) == expected


def test_explicit_steps_count_the_samples():
    facts = data_facts.describe({"x": DataLoader(Stream(1000), batch_size=32), "steps_per_epoch": 7})
    assert (facts.samples, facts.micro_steps, facts.explicit_steps) == (224, 7, True)


def test_the_reason_why_a_loader_cannot_be_rebatched_is_given():
    class Twice(DataLoader):
        def __iter__(self):
            yield from super().__iter__()
            yield from super().__iter__()

    assert torch_dataloader.why_fixed(DataLoader(rows(6))) == ""
    assert "batch_sampler (Pairs)" in torch_dataloader.why_fixed(DataLoader(rows(6), batch_sampler=Pairs()))
    assert "returns whole batches" in torch_dataloader.why_fixed(DataLoader([rows(9)[:3]] * 3, batch_size=None))
    assert "Twice has an iterator of its own" in torch_dataloader.why_fixed(Twice(rows(6), batch_size=2))


@pytest.mark.parametrize("generator", [False, True])
def test_a_look_draws_no_random_number(generator):
    own = torch.Generator().manual_seed(1) if generator else None
    loader = DataLoader(Drawing(), batch_size=8, shuffle=True, num_workers=2, generator=own)

    def numbers(look):
        keras.utils.set_random_seed(2)
        torch.manual_seed(2)
        if look:
            arguments = {"x": loader}
            facts = data_facts.describe(arguments)
            assert data_facts.sample_batch(arguments, facts, 12)[0].shape == (12, 1)
            assert data_facts.placeholder_batch(arguments, facts)[1].shape == (1, 1)
        drawn = float(torch.rand(1, generator=own)) if own else 0
        return drawn, float(torch.rand(1)), float(np.random.rand()), random.random()

    first = numbers(look=True)
    if own:
        own.manual_seed(1)
    assert first == numbers(look=False)


def rebatched(loader, script, wanted, *, padded=False):
    return torch_dataloader.rebatched(loader, Regrouping(script, wanted, padded))


def served(loader):
    """Return the row numbers of each micro-batch, and check its targets."""
    batches = list(loader)
    assert all(torch.equal(2 * x, y) for x, y in batches)
    return [x[:, 0].int().tolist() for x, _ in batches]


def joined(lists):
    return [row for one in lists for row in one]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("samples", [96, 90, 77, 65])
def test_whole_effective_batches_are_split_in_order(samples, shuffled):
    loader = DataLoader(rows(samples), batch_size=32, shuffle=shuffled)
    changed = rebatched(loader, SCRIPT, CUT)
    epochs = []
    for one in (loader, changed):
        torch.manual_seed(5)
        epochs.append([served(one) for _ in range(2)])
    own, cut = epochs
    whole, rest = divmod(samples, 32)
    for own_epoch, cut_epoch in zip(own, cut, strict=True):
        assert [len(piece) for piece in cut_epoch] == [8] * (4 * whole) + [rest // 4] * (4 if rest >= 4 else 0)
        assert joined(cut_epoch) == joined(own_epoch)[: len(joined(cut_epoch))]
        assert len(cut_epoch) == len(changed)
    assert changed.dropped_rows == 2 * (rest % 4)
    assert shuffled == (cut[0] != cut[1])


def test_padding_keeps_every_row():
    changed = rebatched(DataLoader(rows(77), batch_size=32), SCRIPT, CUT, padded=True)
    batches = list(changed)
    assert len(batches) == len(changed) == 12
    assert all(len(x) == 8 for x, _, _ in batches)
    weights = torch.cat([weight for _, _, weight in batches])
    assert torch.allclose(weights, torch.tensor([1.0] * 64 + [32 / 13] * 13 + [0.0] * 19))
    assert torch.cat([x for x, _, _ in batches])[:77, 0].tolist() == list(range(77))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dataset", [rows(90), CountedStream(90), Stream(90)])
def test_small_batches_are_concatenated_to_whole_updates(dataset, drop_last):
    loader = DataLoader(dataset, batch_size=8, drop_last=drop_last)
    changed = rebatched(loader, Batch(8, accumulation=4), Batch(32))
    kept = 88 if drop_last else 90
    assert served(changed) == [list(range(32)), list(range(32, 64)), list(range(64, kept))]
    if type(dataset) is not Stream:
        assert len(changed) == 3


def test_the_rows_drawn_by_a_sampler_stay_the_same():
    weights = [0.0] * 50 + [1.0] * 50
    loader = DataLoader(rows(100), batch_size=32, sampler=WeightedRandomSampler(weights, 64))
    for wanted in (Batch(4, accumulation=16), Batch(8, accumulation=2), Batch(16)):
        changed = rebatched(loader, SCRIPT, wanted)
        torch.manual_seed(1)
        own = joined(served(loader))
        torch.manual_seed(1)
        cut = served(changed)
        assert joined(cut) == own
        assert {len(piece) for piece in cut} == {wanted.global_size}
        assert min(own) >= 50


def test_the_loaders_own_generator_draws_the_same_numbers():
    def loader():
        return DataLoader(rows(64), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))

    own, changed = loader(), rebatched(loader(), SCRIPT, CUT)
    assert [joined(served(changed)) for _ in range(3)] == [joined(served(own)) for _ in range(3)]


def test_other_random_numbers_stay_the_same():
    drawn = []
    for wanted in (SCRIPT, CUT):
        loader = DataLoader(rows(64), batch_size=32, shuffle=True)
        changed = loader if wanted is SCRIPT else rebatched(loader, SCRIPT, wanted)
        torch.manual_seed(1)
        iter(changed)  # Keras makes iterators that it does not use
        drawn.append([served(changed) and float(torch.rand(1)) for _ in range(2)])
    assert drawn[0] == drawn[1]


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX, where it runs in this process, warns of any fork
@pytest.mark.parametrize("dataset", [rows(80), CountedStream(80)])
def test_a_loader_with_worker_processes_is_rebatched(dataset):
    def loader():
        return DataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True, prefetch_factor=3)

    own = joined(served(loader()))
    assert sorted(own) == list(range(80))
    cut = rebatched(loader(), Batch(16), Batch(4, accumulation=4))
    assert joined(served(cut)) == own
    whole = rebatched(loader(), Batch(16, accumulation=2), Batch(32))
    batches = served(whole)
    assert joined(batches) == own
    assert [len(batch) for batch in batches] == [32, 32, 16]


def test_a_collate_function_receives_the_same_rows():
    def centred(samples):
        x = torch.stack([one for one, _ in samples])
        return {"centred": x - x.mean(), "row": x}, x

    loader = DataLoader(rows(64), batch_size=32, collate_fn=centred)
    own = [batch for batch, _ in loader]
    pieces = [batch for batch, _ in rebatched(loader, SCRIPT, CUT)]
    assert len(pieces) == 8
    assert torch.equal(
        torch.cat([piece["centred"] for piece in pieces]), torch.cat([batch["centred"] for batch in own])
    )


def model(*, metrics=()):
    keras.utils.set_random_seed(1)
    one = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    one.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=list(metrics))
    return one


@pytest.mark.parametrize("samples", [96, 92, 91])
def test_training_from_a_loader_makes_the_same_updates(samples):
    x = torch.linspace(-1, 1, samples)[:, None]
    arguments = {"x": DataLoader(TensorDataset(x, x**2), batch_size=32, shuffle=True), "epochs": 3, "shuffle": False}
    trained = []
    for wanted in (SCRIPT, CUT):
        one = model()
        torch.manual_seed(7)
        changed = rebatch.rebatched(arguments, data_facts.describe(arguments), SCRIPT, wanted, can_pad=True)
        one.optimizer = adapt_optimizer(one.optimizer, SCRIPT, wanted)
        one.fit(**changed, verbose=0)
        assert int(one.optimizer.iterations) == 9
        trained.append([weight.numpy() for weight in one.trainable_variables])
    for own, cut in zip(*trained, strict=True):
        assert np.allclose(own, cut, rtol=1e-5, atol=1e-6)


def test_steps_per_epoch_cover_the_same_samples():
    arguments = {"x": DataLoader(rows(128), batch_size=32), "steps_per_epoch": 3}
    changed = rebatch.rebatched(arguments, data_facts.describe(arguments), SCRIPT, CUT, can_pad=False)
    assert changed["steps_per_epoch"] == 12
