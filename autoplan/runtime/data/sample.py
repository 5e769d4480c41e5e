"""Looks at data that run the script's own code: nothing is lost by a look, and no random number is drawn."""

from __future__ import annotations

import contextlib
import itertools
import random
import weakref
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import Any

import keras
import numpy as np

_FIRST: weakref.WeakKeyDictionary[Generator[Any, None, None], Any] = weakref.WeakKeyDictionary()
"""Generators that were looked into, with the batch that they yield first."""


def lookable(arguments: dict[str, Any]) -> dict[str, Any]:
    """A fit's arguments, a generator among them in a form whose first batch can be looked at and still is trained on.

    The first batch is read here, which is where `fit` would read it. Everything else stays as it is, an empty generator
    included.
    """
    x = arguments.get("x")
    if not isinstance(x, GeneratorType) or x in _FIRST:
        return arguments
    first = list(itertools.islice(x, 1))
    restored = _chained(first, x)
    if first:
        _FIRST[restored] = first[0]
    return {**arguments, "x": restored}


def told_of_end(arguments: dict[str, Any], on_end: Callable[[], None]) -> dict[str, Any]:
    """A fit's arguments; `on_end` is called when a generator among them has nothing more to yield."""
    x = arguments.get("x")
    if not isinstance(x, GeneratorType):
        return arguments
    watched = _chained([], x, on_end)
    if x in _FIRST:
        _FIRST[watched] = _FIRST[x]
    return {**arguments, "x": watched}


def first_of(generator: Any) -> Any:
    """The first batch of a generator that came through `lookable`; None of any other, and of an empty one."""
    return _FIRST.get(generator) if isinstance(generator, GeneratorType) else None


def first_middle_last(dataset: Any, batches: int | None) -> list[Any]:
    """Batches of a `PyDataset` at three places of an epoch; the first two where it has no end."""
    places = [0, 1] if batches is None else sorted({0, batches // 2, batches - 1})
    with random_numbers_kept():
        return [standardized(dataset[place]) for place in places] if batches != 0 else []


def standardized(batch: Any) -> Any:
    """A batch as Keras's adapters hand it on: a list is a tuple, and an array alone is a tuple of one."""
    if isinstance(batch, list):
        return tuple(batch)
    return (batch,) if isinstance(batch, np.ndarray) else batch


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Whatever is drawn from Python's and NumPy's global generators in here is drawn again afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- what scripts draw from
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 -- what scripts draw from


def rows(batch: Any) -> int:
    """Rows of a batch: the first dimension of its first array; 0 where it holds none."""
    for leaf in keras.tree.flatten(batch):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    return 0


def is_dense(batch: Any) -> bool:
    """Whether every part of a batch is an array whose rows can be cut and joined: nothing sparse, nothing ragged."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    return bool(leaves) and all(
        hasattr(leaf, "__array__") and len(getattr(leaf, "shape", ())) > 0 and not _is_sparse(leaf) for leaf in leaves
    )


def _is_sparse(leaf: Any) -> bool:
    name = f"{type(leaf).__module__}.{type(leaf).__name__}".lower()
    return any(word in name for word in ("sparse", "bcoo", "bcsr", "ragged"))


def _chained(
    first: list[Any], rest: Generator[Any, None, None], on_end: Callable[[], None] | None = None
) -> Generator[Any, None, None]:
    """Not by `yield from rest`: that would close the script's generator together with this one, after a fit."""
    yield from first
    for batch in rest:  # noqa: UP028 -- see above
        yield batch
    if on_end is not None:
        on_end()
