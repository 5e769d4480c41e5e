"""Counts the rows of a torch `DataLoader`, reads its first batch, and rebuilds it with another batch size.

Under another batch the script's own sampler draws the rows from the same random numbers, in the same order. If an
update is one batch of the script, that batch is collated as the script collates it and then split into micro-steps, so
a collate_fn that looks at several rows sees the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from autoplan.runtime.data import nested_arrays
from autoplan.runtime.data.nested_arrays import map_leaves
from autoplan.runtime.data.random_state import preserved_random_state
from autoplan.runtime.data.regroup import Regrouping
from cost_models.config import Batch


def is_loader(x: Any) -> bool:
    """Return whether x is a `torch.utils.data.DataLoader`, without importing PyTorch."""
    return any(base.__name__ == "DataLoader" and base.__module__.startswith("torch.utils.data") for base in _bases(x))


def why_fixed(loader: Any) -> str:
    """Return why this loader cannot be re-batched with the rows in the same order; "" if it can."""
    from torch.utils.data import BatchSampler, DataLoader

    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind.__len__ is not DataLoader.__len__:
        return f"{kind.__name__} has an iterator of its own"
    if loader.batch_sampler is None:
        return "its dataset returns whole batches"
    if type(loader.batch_sampler) is not BatchSampler:
        return f"its batch_sampler ({type(loader.batch_sampler).__name__}) decides which rows form a batch"
    return ""


def batch_of(loader: Any) -> int:
    """Return the rows of a full batch. If the loader has no batch size, the first batch is read."""
    own = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return int(own) if isinstance(own, int) and own > 0 else nested_arrays.row_count(first_batch(loader))


def micro_steps_of(loader: Any) -> int | None:
    """Return the batches of an epoch; None for a stream of unknown length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def samples_of(loader: Any) -> int | None:
    """Return the rows of an epoch without those that drop_last drops; None for a stream of unknown length.

    If the sampler does not make the batches, this may count up to one batch too many.
    """
    if why_fixed(loader):
        batches = micro_steps_of(loader)
        return None if batches is None else batches * batch_of(loader)
    rows = loader.dataset if is_stream(loader) else loader.batch_sampler.sampler
    try:
        samples = len(rows)
    except (TypeError, NotImplementedError):
        return None
    return samples - samples % batch_of(loader) if loader.batch_sampler.drop_last else samples


def first_batch(loader: Any) -> Any:
    """Return the first batch, without advancing random number generators or starting worker processes."""
    return next(batches_of(loader))


def batches_of(loader: Any) -> Iterator[Any]:
    """Yield the batches of an epoch, without advancing random number generators or starting worker processes.

    The generators are restored when this iterator is exhausted or closed.
    """
    with preserved_generators(loader), preserved_random_state():
        alone = loader if why_fixed(loader) or not loader.num_workers else like(loader, num_workers=0)
        yield from alone


def like(loader: Any, **instead: Any) -> Any:
    """Return a plain DataLoader with the arguments of this one, some of them replaced."""
    from torch.utils.data import DataLoader

    arguments = {
        name: getattr(loader, name)
        for name in ("dataset", "num_workers", "collate_fn", "pin_memory", "worker_init_fn", "generator", "in_order")
        if hasattr(loader, name)  # in_order does not exist in older versions
    }
    if is_stream(loader):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    arguments |= instead
    if arguments["num_workers"]:
        workers = ("timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers")
        arguments |= {name: getattr(loader, name) for name in workers}
    return DataLoader(**arguments)


def is_stream(loader: Any) -> bool:
    """Return whether the dataset is an IterableDataset, whose rows have no index."""
    return any(
        base.__name__ == "IterableDataset" and base.__module__.startswith("torch.utils.data")
        for base in _bases(loader.dataset)
    )


def _bases(x: Any) -> tuple[type, ...]:
    return type(x).__mro__


@contextmanager
def preserved_generators(loader: Any) -> Iterator[None]:
    """Restore the random number generators that were given to the loader or its samplers, but not the global ones."""
    samplers = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    own = [generator for generator in (getattr(one, "generator", None) for one in samplers) if generator is not None]
    states = [generator.get_state() for generator in own]
    try:
        yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)


def rebatched(loader: Any, regrouping: Regrouping) -> Any:
    """Return a loader of the wanted micro-batches: the rows of each update in the script's order, split."""
    samples = None if is_stream(loader) and loader.num_workers > 1 else samples_of(loader)
    script, wanted = regrouping.script, regrouping.wanted
    if script.global_size != wanted.effective and _can_change_batch_size(loader):
        loader, script = _with_batch_size(loader, wanted.effective), Batch(wanted.effective)
        if wanted.accumulation == 1:
            return loader
        regrouping = replace(regrouping, script=script)
    micro_steps = None
    if samples is not None:
        batches = math.ceil(samples / script.global_size)
        last_rows = samples - (batches - 1) * script.global_size
        micro_steps = regrouping.micro_steps_per_epoch(batches, last_rows, shuffled=False)
    return _micro_batch_loader(loader, regrouping, micro_steps)


def _can_change_batch_size(loader: Any) -> bool:
    """Return whether the loader itself can make batches of another size from the same rows in the same order."""
    return not is_stream(loader) or (loader.num_workers <= 1 and not loader.drop_last)


def _with_batch_size(loader: Any, size: int) -> Any:
    if is_stream(loader):
        return like(loader, batch_size=size)
    return like(loader, batch_sampler=_ResizedBatchSampler(loader.batch_sampler, size))


class _ResizedBatchSampler:
    """The indices of a batch sampler in batches of another size. Rows that drop_last drops stay dropped."""

    def __init__(self, batch_sampler: Any, size: int) -> None:
        self._batch_sampler, self._size = batch_sampler, size

    def __iter__(self) -> Iterator[list[Any]]:
        indices: list[Any] = []
        for batch in self._batch_sampler:
            indices.extend(batch)
            while len(indices) >= self._size:
                yield indices[: self._size]
                del indices[: self._size]
        if indices:
            yield indices

    def __len__(self) -> int:
        own = self._batch_sampler
        samples = len(own.sampler)
        used = samples - samples % own.batch_size if own.drop_last else samples
        return math.ceil(used / self._size)


def _micro_batch_loader(loader: Any, regrouping: Regrouping, micro_steps: int | None) -> Any:
    """Return a loader of the micro-batches that a regrouping makes of another loader's batches.

    micro_steps  number per epoch; None if it is not known
    """
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class MicroBatches(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            # The iterator is created now, not when the first batch is read, because its creation draws a random number.
            batches = iter(loader)
            return map(_as_tensors, regrouping.micro_steps(map(nested_arrays.as_tuple, batches)))

    class Counted(MicroBatches):
        def __len__(self) -> int:
            return micro_steps or 0

    class Loader(DataLoader):
        @property
        def dropped_rows(self) -> int:
            """Samples that were dropped so far."""
            return regrouping.dropped_rows

    dataset = MicroBatches() if micro_steps is None else Counted()
    # A generator of its own keeps this loader from advancing the generator that the script's sampler draws from.
    return Loader(dataset, batch_size=None, collate_fn=_identity, generator=torch.Generator())


def _identity(batch: Any) -> Any:
    return batch


def _as_tensors(batch: Any) -> Any:
    import torch

    return map_leaves(torch.as_tensor, batch)
