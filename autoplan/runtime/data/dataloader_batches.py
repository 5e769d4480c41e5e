"""A torch `DataLoader` under another batch: the same rows in the same order, in the micro-steps of each update.

The script's own sampler draws the rows, from the same random numbers. Where an update is one batch of the script's, it
is collated as the script collates it and then cut, so that a collate_fn that looks at several rows sees the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoplan.runtime.data import dataloader, sample
from autoplan.runtime.data.data_facts import map_leaves
from autoplan.runtime.data.regroup import Regrouping
from cost_models.config import Batch


def rebatched(loader: Any, regrouping: Regrouping) -> Any:
    """The loader in the wanted micro-batches: each update's rows in the script's order, cut into its micro-steps."""
    samples = None if dataloader.is_stream(loader) and loader.num_workers > 1 else dataloader.samples_of(loader)
    script, wanted = regrouping.script, regrouping.wanted
    if script.global_size != wanted.effective and _deals_anew(loader):
        loader, script = _in_batches_of(loader, wanted.effective), Batch(wanted.effective)
        if wanted.accumulation == 1:
            return loader
        regrouping = replace(regrouping, script=script)
    micro_steps = None
    if samples is not None:
        batches = math.ceil(samples / script.global_size)
        last_rows = samples - (batches - 1) * script.global_size
        micro_steps = regrouping.micro_steps_an_epoch(batches, last_rows, shuffled=False)
    return _served(loader, regrouping, micro_steps)


def _deals_anew(loader: Any) -> bool:
    """Whether the loader itself can make batches of another size of the same rows in the same order."""
    return not dataloader.is_stream(loader) or (loader.num_workers <= 1 and not loader.drop_last)


def _in_batches_of(loader: Any, size: int) -> Any:
    if dataloader.is_stream(loader):
        return dataloader.like(loader, batch_size=size)
    return dataloader.like(loader, batch_sampler=_Regrouped(loader.batch_sampler, size))


class _Regrouped:
    """The indices of a batch sampler in batches of another size; what drop_last leaves out stays out."""

    def __init__(self, batch_sampler: Any, size: int) -> None:
        self._batch_sampler, self._size = batch_sampler, size

    def __iter__(self) -> Iterator[list[Any]]:
        held: list[Any] = []
        for batch in self._batch_sampler:
            held.extend(batch)
            while len(held) >= self._size:
                yield held[: self._size]
                del held[: self._size]
        if held:
            yield held

    def __len__(self) -> int:
        own = self._batch_sampler
        samples = len(own.sampler)
        kept = samples - samples % own.batch_size if own.drop_last else samples
        return math.ceil(kept / self._size)


def _served(loader: Any, regrouping: Regrouping, micro_steps: int | None) -> Any:
    """A loader of the micro-batches that are made of another one's, so many an epoch (None: not known)."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class MicroBatches(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            # Made at once and not when the first batch is asked for: making an iterator draws a random number.
            batches = iter(loader)
            return map(_as_tensors, regrouping.micro_steps(map(sample.standardized, batches)))

    class Counted(MicroBatches):
        def __len__(self) -> int:
            return micro_steps or 0

    class Loader(DataLoader):
        @property
        def dropped_rows(self) -> int:
            """Samples that were left out so far."""
            return regrouping.dropped_rows

    dataset = MicroBatches() if micro_steps is None else Counted()
    # With a generator of its own this loader takes no number from those that the script's sampler draws from.
    return Loader(dataset, batch_size=None, collate_fn=_as_it_is, generator=torch.Generator())


def _as_it_is(batch: Any) -> Any:
    return batch


def _as_tensors(batch: Any) -> Any:
    import torch

    return map_leaves(torch.as_tensor, batch)
