"""A torch `DataLoader` as the data of a fit, on any backend: what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autoplan.runtime.data import sample


def is_loader(x: Any) -> bool:
    """Whether x is a `torch.utils.data.DataLoader`, without importing PyTorch."""
    return any(base.__name__ == "DataLoader" and base.__module__.startswith("torch.utils.data") for base in _bases(x))


def why_fixed(loader: Any) -> str:
    """Why this loader's batches cannot be cut anew with every row in its place; empty where they can."""
    from torch.utils.data import BatchSampler, DataLoader

    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind.__len__ is not DataLoader.__len__:
        return f"{kind.__name__} iterates in a way of its own"
    if loader.batch_sampler is None:
        return "its dataset makes the batches itself"
    if type(loader.batch_sampler) is not BatchSampler:
        return f"its batch_sampler ({type(loader.batch_sampler).__name__}) chooses what goes into a batch"
    return ""


def batch_of(loader: Any) -> int:
    """Rows of a full batch; looked up in the first one where the loader does not say."""
    own = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return int(own) if isinstance(own, int) and own > 0 else sample.rows(first_batch(loader))


def micro_steps_of(loader: Any) -> int | None:
    """Batches of an epoch; None where only the end of the data tells."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def samples_of(loader: Any) -> int | None:
    """Rows of an epoch, less those that drop_last leaves out; None where only the end of the data tells.

    An upper bound by one partial batch where something else than the sampler makes the batches.
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
    """One batch to look at. What that draws at random is put back, and no worker process is started."""
    with _draws_put_back(loader):
        alone = loader if why_fixed(loader) or not loader.num_workers else like(loader, num_workers=0)
        return next(iter(alone))


def like(loader: Any, **instead: Any) -> Any:
    """A plain DataLoader with the arguments of this one, and others `instead` of some."""
    from torch.utils.data import DataLoader

    arguments = {
        name: getattr(loader, name)
        for name in ("dataset", "num_workers", "collate_fn", "pin_memory", "worker_init_fn", "generator", "in_order")
        if hasattr(loader, name)  # in_order is newer than the rest
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
    """Whether the data come in an order of their own, rather than by index."""
    return any(
        base.__name__ == "IterableDataset" and base.__module__.startswith("torch.utils.data")
        for base in _bases(loader.dataset)
    )


def _bases(x: Any) -> tuple[type, ...]:
    return type(x).__mro__


@contextmanager
def _draws_put_back(loader: Any) -> Iterator[None]:
    """Let what runs in here leave every random number generator as it was."""
    import torch

    samplers = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    own = [generator for generator in (getattr(one, "generator", None) for one in samplers) if generator is not None]
    states = [generator.get_state() for generator in own]
    try:
        with sample.random_numbers_kept(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
