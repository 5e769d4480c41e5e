"""Reads the first batches of generators and `PyDataset`s without losing a batch or advancing random numbers."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import Any

from keras.src.trainers.data_adapters.data_adapter_utils import NUM_BATCHES_FOR_TENSOR_SPEC

from autoplan.runtime.data import nested_arrays
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.data.python_state import PythonState
from autoplan.runtime.data.random_state import preserved_random_state

_FIRST: weakref.WeakKeyDictionary[Generator[Any, None, None], Any] = weakref.WeakKeyDictionary()
"""The buffered first batch of each generator that `buffer_first_batch` has returned."""


def buffer_first_batch(arguments: FitArguments) -> FitArguments:
    """Read the first batches of a generator among the arguments of a fit, and return arguments that still yield them.

    `fit` reads as many at the same moment, before it builds the model: the batches and the initial weights may be drawn
    from one generator of random numbers. Arguments without a generator are returned unchanged.
    """
    x = arguments.get("x")
    if not isinstance(x, GeneratorType) or x in _FIRST:
        return arguments
    first = list(itertools.islice(x, NUM_BATCHES_FOR_TENSOR_SPEC))
    restored = _chained(first, x)
    if first:
        _FIRST[restored] = first[0]
    return {**arguments, "x": restored}


def call_at_end(arguments: FitArguments, on_end: Callable[[], None]) -> FitArguments:
    """Return arguments of a fit that call `on_end` when a generator among them is exhausted."""
    x = arguments.get("x")
    if not isinstance(x, GeneratorType):
        return arguments
    watched = _chained([], x, on_end)
    if x in _FIRST:
        _FIRST[watched] = _FIRST[x]
    return {**arguments, "x": watched}


def buffered_batch(generator: Any) -> Any:
    """Return the buffered first batch of a generator; None for an empty generator or one that was not buffered."""
    return _FIRST.get(generator) if isinstance(generator, GeneratorType) else None


def first_middle_last(dataset: Any, batches: int | None) -> list[Any]:
    """Return the first, middle and last batch of a `PyDataset`; the first two batches if it is endless."""
    indices = [0, 1] if batches is None else sorted({0, batches // 2, batches - 1})
    with unchanged(dataset):
        return [nested_arrays.as_tuple(dataset[index]) for index in indices] if batches != 0 else []


@contextlib.contextmanager
def unchanged(dataset: Any) -> Iterator[None]:
    """Restore what reading a `PyDataset` changes: its own attributes and generators, and the global generators."""
    with preserved_attributes(dataset), preserved_random_state():
        yield


@contextlib.contextmanager
def preserved_attributes(dataset: Any) -> Iterator[None]:
    """Restore the attributes of a `PyDataset` and the generators that it has of its own, but not the global ones."""
    state = PythonState([dataset])
    try:
        yield
    finally:
        state.restore()


def _chained(
    first: list[Any], rest: Generator[Any, None, None], on_end: Callable[[], None] | None = None
) -> Generator[Any, None, None]:
    """Chain batches. `yield from rest` would close the script's generator together with this one, after a fit."""
    yield from first
    for batch in rest:  # noqa: UP028 -- see above
        yield batch
    if on_end is not None:
        on_end()
