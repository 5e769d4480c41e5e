"""What a torch DataLoader says of itself, and what a look into it leaves as it was."""

import random

import keras
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler

from autoplan.runtime.data import data_facts, dataloader
from tests.models.loaded import CountedStream, Drawing, Pairs, Stream, rows


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
def test_a_loader_says_what_it_serves(make, expected):
    assert described(make()) == expected


def test_explicit_steps_count_the_samples():
    facts = data_facts.describe({"x": DataLoader(Stream(1000), batch_size=32), "steps_per_epoch": 7})
    assert (facts.samples, facts.micro_steps, facts.explicit_steps) == (224, 7, True)


def test_why_a_loader_cannot_be_re_batched_is_told():
    class Twice(DataLoader):
        def __iter__(self):
            yield from super().__iter__()
            yield from super().__iter__()

    assert dataloader.why_fixed(DataLoader(rows(6))) == ""
    assert "batch_sampler (Pairs)" in dataloader.why_fixed(DataLoader(rows(6), batch_sampler=Pairs()))
    assert "makes the batches itself" in dataloader.why_fixed(DataLoader([rows(9)[:3]] * 3, batch_size=None))
    assert "Twice iterates" in dataloader.why_fixed(Twice(rows(6), batch_size=2))


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
            assert data_facts.shapes_of_a_batch(arguments, facts)[1].shape == (1, 1)
        drawn = float(torch.rand(1, generator=own)) if own else 0
        return drawn, float(torch.rand(1)), float(np.random.rand()), random.random()

    first = numbers(look=True)
    if own:
        own.manual_seed(1)
    assert first == numbers(look=False)
