"""Looks through the batches of an epoch for a limited time, and reports in which shapes they come.

Memory is that of the largest batch, and the time of a batch depends on its shape, so the first batch alone says little
about data whose batches differ. Only data that can be read again are looked through.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from autoplan import formatting
from autoplan.runtime.data import lookahead, nested_arrays, torch_dataloader

LOOK_SECONDS = 1.5
"""Time for looking at batches. The batch that is being read when it is over is the last."""
MOST_LOOKED_AT = 20_000
Shapes = tuple[tuple[int, ...], ...]
"""Shapes of the arrays of a batch, in the order of `keras.tree.flatten`."""
_WRITING = ("_SnapshotDataset", "_SaveDataset", "SaveDataset", "LegacySnapshotDataset")
"""tf.data pipelines that write files while they are read."""


@dataclass(frozen=True)
class BatchShapes:
    """Shapes of the batches of an epoch that were looked at.

    seen     shapes in the order in which they were read
    batches  batches of an epoch; None if it is not known
    last     shapes of the last batch of an epoch, if it has fewer rows than others and is not in `seen`
    item_bytes   bytes of an element of each array
    """

    seen: tuple[Shapes, ...]
    batches: int | None
    last: Shapes | None
    item_bytes: tuple[int, ...]

    @property
    def looked(self) -> int:
        """Number of batches that were looked at."""
        return len(self.seen) + (self.last is not None)

    @property
    def complete(self) -> bool:
        """Whether every batch of an epoch was looked at."""
        return self.batches is not None and self.looked >= self.batches

    @property
    def progress(self) -> str:
        """How many batches were looked at: `12 of 60 batches were looked at`."""
        if self.batches is None:
            return f"{formatting.counted(self.looked, 'batch', 'batches')} were looked at, of an unknown number"
        of = formatting.counted(self.batches, "batch", "batches")
        return f"{self.looked:,} of {of} {'was' if self.looked == 1 else 'were'} looked at"

    @property
    def every(self) -> tuple[Shapes, ...]:
        return self.seen if self.last is None else (*self.seen, self.last)

    @property
    def common(self) -> Shapes:
        """The most frequent shapes; of equally frequent ones, those that came first."""
        return Counter(self.seen).most_common(1)[0][0]

    @property
    def largest(self) -> Shapes:
        """The shapes with the most bytes; of equally large ones, those with the largest rows."""
        return max(self.every, key=lambda shapes: (self._bytes(shapes), self._bytes(shapes) / max(1, _rows(shapes))))

    @property
    def differ_in_rows(self) -> bool:
        """Whether the number of rows differs between batches other than a smaller last one."""
        return len({_rows(shapes) for shapes in self.seen}) > 1

    @property
    def differ_in_shape(self) -> bool:
        """Whether arrays of one batch have other dimensions after the first than those of another batch."""
        return len({tuple(shape[1:] for shape in shapes) for shapes in self.every}) > 1

    @property
    def samples(self) -> int:
        """Rows of the batches that were looked at."""
        return sum(map(_rows, self.every))

    def shown(self, shapes: Shapes) -> str:
        """Return the shape of the array that differs most in size between batches: `32 x 1024`."""
        sizes = [[np.prod(shape[1:]) for shape in arrays] for arrays in zip(*self.every, strict=True)]
        chosen = int(np.argmax([max(column) - min(column) for column in sizes]))
        return " x ".join(map(str, shapes[chosen]))

    def _bytes(self, shapes: Shapes) -> float:
        return float(sum(np.prod(shape) * item for shape, item in zip(shapes, self.item_bytes, strict=True)))


def why_not_regrouped(shapes: BatchShapes) -> str:
    """Return why rows of several batches cannot form one batch; "" if they can, by the batches that were looked at."""
    if shapes.differ_in_shape:
        return f"its batches differ in {'rows and in shape' if shapes.differ_in_rows else 'shape'}"
    rows = sorted({_rows(one) for one in shapes.seen})
    return f"its batches differ in their number of samples ({rows[0]} to {rows[-1]})" if len(rows) > 1 else ""


def of_py_dataset(dataset: Any, batches: int | None, seconds: float) -> BatchShapes | None:
    """Look at the first, last and middle batch of a `PyDataset`, then at the others in a random order.

    If it is endless, the first batches are looked at.
    """
    if batches == 0:
        return None
    indices = range(MOST_LOOKED_AT) if batches is None else _in_order_of_look(batches)
    with lookahead.unchanged(dataset):
        read = ((index, nested_arrays.as_tuple(dataset[index])) for index in indices)
        last = None if batches is None else batches - 1
        return _looked_at(read, batches, seconds, last_index=last)


def of_tf_dataset(dataset: Any, batches: int | None, seconds: float) -> BatchShapes | None:
    """Look at the first batches of a tf.data pipeline; None for one that writes files while it is read.

    batches  batches that a fit reads; None if it is not known
    """
    if not can_be_looked_through(dataset):
        return None
    read = itertools.islice(enumerate(dataset), batches)
    return _looked_at(read, batches, seconds, last_index=None if batches is None else batches - 1)


def of_loader(loader: Any, batches: int | None, seconds: float) -> BatchShapes | None:
    """Look at the first batches of a torch `DataLoader`; None if its rows have no index, so may come only once."""
    if torch_dataloader.is_stream(loader):
        return None
    last = None if batches is None else batches - 1
    return _looked_at(enumerate(torch_dataloader.batches_of(loader)), batches, seconds, last_index=last)


def of_first(batch: Any, batches: int | None) -> BatchShapes | None:
    """Return the shapes of data of which only the first batch is known, such as a generator's."""
    return _looked_at([(0, batch)], batches, 0.0, last_index=None)


def can_be_looked_through(dataset: Any) -> bool:
    """Return whether reading a part of a tf.data pipeline leaves no files behind: a cache in a file does."""
    import tensorflow as tf

    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        name = type(one).__name__
        filename = getattr(one, "_filename", None) if name == "CacheDataset" else None
        if name in _WRITING or (filename is not None and tf.get_static_value(filename) not in (b"", "")):
            return False
        waiting += one._inputs()
    return True


def _in_order_of_look(batches: int) -> Iterator[int]:
    first = dict.fromkeys((0, batches - 1, batches // 2))
    yield from first
    order = np.random.default_rng(0).permutation(batches)
    yield from (int(index) for index in order if index not in first)


def _looked_at(
    read: Iterable[tuple[int, Any]], batches: int | None, seconds: float, *, last_index: int | None
) -> BatchShapes | None:
    """Return the shapes of numbered batches until the time is over. None if they are not batches of dense arrays.

    A batch that cannot be read ends the look: the training reports it.
    """
    ends, found, items = time.perf_counter() + seconds, dict[int, Shapes](), tuple[int, ...]()
    with suppress(Exception):
        for index, batch in read:
            leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
            if not nested_arrays.is_dense(batch):
                return None
            shapes = tuple(tuple(map(int, leaf.shape)) for leaf in leaves)
            if found and len(shapes) != len(items):
                return None
            items = items or tuple(_item_bytes(leaf) for leaf in leaves)
            found[index] = shapes
            if time.perf_counter() > ends or len(found) >= MOST_LOOKED_AT:
                break
        else:
            batches, last_index = len(found), max(found, default=0)  # the end of the data was reached
    if not found:
        return None
    last = None
    if last_index in found and _rows(found[last_index]) < max(map(_rows, found.values())):
        last = found.pop(last_index)
    return BatchShapes(tuple(found.values()), batches, last, items)


def _item_bytes(leaf: Any) -> int:
    """Return the bytes of an element; 4 for a dtype without a known size, such as text."""
    return int(getattr(leaf.dtype, "size", None) or getattr(leaf.dtype, "itemsize", None) or 4)


def _rows(shapes: Shapes) -> int:
    return shapes[0][0] if shapes and shapes[0] else 0
