"""Batches that come one after another, regrouped into the micro-steps of each update: PyDatasets and generators.

Keras's own adapters go on reading the script's data: order, shuffling, class weights, threads, processes and what
happens between epochs are theirs. What they yield is joined into the rows of one update and cut into its micro-steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter, data_adapter_utils, get_data_adapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from autoplan.runtime.data import sample
from autoplan.runtime.data.data_facts import map_leaves
from cost_models.config import Batch


@dataclass
class Regrouping:
    """From the script's batches to the wanted ones.

    While the effective batch is kept, an update is made of the very batches that the script makes it of, wherever among
    them a partial one comes; else of the next so many rows. An update of other than the full number of rows is cut into
    equal micro-steps. padded: it is filled up with rows of weight zero first, and its real rows weigh accordingly more
    (see `runtime/batching.py`); every batch then has weights. Otherwise rows that do not divide are left out.

    dropped_rows   counts those that were left out so far
    """

    script: Batch
    wanted: Batch
    padded: bool = False
    dropped_rows: int = 0

    @property
    def keeps_updates(self) -> bool:
        return self.script.effective == self.wanted.effective

    @property
    def most_batches_an_update(self) -> int:
        """Batches of the script that one update takes."""
        return max(self.script.accumulation, -(-self.wanted.effective // self.script.global_size))

    def micro_steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The micro-batches of one update after another."""
        for update in self._updates(iter(batches)):
            yield from self._cut(update)

    def micro_steps_an_epoch(self, batches: int, last_rows: int, *, shuffled: bool) -> int | None:
        """Of an epoch of so many batches, the last of `last_rows`; None where it depends on their order."""
        sizes = self.partial_updates(batches, last_rows)
        counts = {self._count(batches, last_rows, partial) for partial in (sizes if shuffled else sizes[:1])}
        return counts.pop() if len(counts) == 1 else None

    def partial_updates(self, batches: int, last_rows: int) -> list[tuple[int, ...]]:
        """Rows of the updates of an epoch that may not be full.

        First with its smaller batch at the end, then, if that differs, with that batch in the midst of it.
        """
        rows, taken = self.script.global_size, self.script.accumulation
        if not self.keeps_updates:
            return [(((batches - 1) * rows + last_rows) % self.wanted.effective,)]
        missing, over = rows - last_rows, batches % taken
        at_end = ((over or taken) * rows - missing,)
        return [at_end, (taken * rows - missing, over * rows)] if 0 < over < batches else [at_end]

    def _count(self, batches: int, last_rows: int, partial: tuple[int, ...]) -> int:
        rows, pieces = (batches - 1) * self.script.global_size + last_rows, self.wanted.accumulation
        full = (rows - sum(partial)) // self.wanted.effective
        run = [size for size in partial if size and (self.padded or size >= pieces)]
        return pieces * (full + len(run))

    def _updates(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not self.keeps_updates:
            yield from _by_rows(batches, self.wanted.effective)
            return
        while taken := list(itertools.islice(batches, self.script.accumulation)):
            yield joined(taken)

    def _cut(self, update: Any) -> Iterator[Any]:
        pieces, rows = self.wanted.accumulation, sample.rows(update)
        size = rows // pieces
        if self.padded:
            size = max(self.wanted.global_size, -(-rows // pieces))
            update = _filled_up(update, size * pieces)
        else:
            self.dropped_rows += rows - size * pieces
        if size:
            for start in range(0, size * pieces, size):
                yield _rows_between(update, start, start + size)


class Regrouped(data_adapter.DataAdapter):
    """What `fit` takes as x: the script's data in the micro-steps of each wanted update.

    read          Keras's adapter of the script's data
    num_batches   micro-steps an epoch; None where only the end of the data tells
    """

    def __init__(self, read: Any, regrouping: Regrouping, num_batches: int | None) -> None:
        self._read, self._regrouping, self._num_batches = read, regrouping, num_batches

    @property
    def dropped_rows(self) -> int:
        """Samples that were left out so far."""
        return self._regrouping.dropped_rows

    def get_numpy_iterator(self) -> Iterator[Any]:
        return self._regrouping.micro_steps(self._read.get_numpy_iterator())

    def get_jax_iterator(self) -> Iterator[Any]:
        return self._regrouping.micro_steps(self._read.get_jax_iterator())

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        signature = self._read.get_tf_dataset().element_spec
        if self._regrouping.padded:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(signature)
            signature = (x, y, tf.TensorSpec([None], "float32") if weight is None else weight)
        # Nothing is read ahead: what a generator has yielded into a buffer would be lost to the next epoch.
        return tf.data.Dataset.from_generator(self.get_numpy_iterator, output_signature=signature)

    def get_torch_dataloader(self) -> Any:
        return data_adapter_utils.get_torch_dataloader(self.get_numpy_iterator())

    def on_epoch_begin(self) -> None:
        self._read.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._read.on_epoch_end()

    @property
    def num_batches(self) -> int | None:
        return self._num_batches

    @property
    def batch_size(self) -> None:
        return None

    @property
    def has_partial_batch(self) -> None:
        return None

    @property
    def partial_batch_size(self) -> None:
        return None


class End(keras.utils.PyDataset):
    """The last batches of a PyDataset."""

    def __init__(self, dataset: Any, batches: int) -> None:
        super().__init__()
        self._dataset, self._batches = dataset, batches

    @property
    def num_batches(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._dataset.num_batches - self._batches + index]


def regrouped(
    x: Any, regrouping: Regrouping, *, last_rows: int | None, shuffle: bool = False, class_weight: Any = None
) -> Regrouped:
    """A `PyDataset` or a generator that came through `peek.lookable`, under another batch.

    last_rows   of the last batch of a PyDataset's epoch
    shuffle     whether batches are shuffled, as `fit` does with a PyDataset
    """
    if isinstance(x, GeneratorType):
        return Regrouped(_of_generator(x, regrouping.most_batches_an_update), regrouping, None)
    count = None
    if x.num_batches is not None and last_rows is not None:
        count = regrouping.micro_steps_an_epoch(x.num_batches, last_rows, shuffled=shuffle)
    return Regrouped(get_data_adapter(x, class_weight=class_weight, shuffle=shuffle), regrouping, count)


def _of_generator(generator: Any, batches: int) -> Any:
    """Keras's adapter, which reads two batches ahead and starts again with these once the model is built.

    One update's batches are read here: building may take a whole update, and nothing of it may be lost.
    """
    adapter = GeneratorDataAdapter(generator)
    ahead = adapter._first_batches
    first = [*ahead, *itertools.islice(generator, max(0, batches - len(ahead)))]
    adapter.generator = lambda: itertools.chain(first, generator)
    return adapter


def joined(batches: list[Any]) -> Any:
    """Batches of one structure as one batch, in order."""
    if len(batches) == 1:
        return batches[0]
    return keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *batches, none_is_leaf=False)


def _by_rows(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows, so many at a time; fewer at the end."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        while (have := sum(map(sample.rows, waiting))) >= rows:
            together = joined(waiting)
            yield _rows_between(together, 0, rows)
            waiting = [_rows_between(together, rows, have)] if have > rows else []
    if waiting:
        yield joined(waiting)


def _rows_between(batch: Any, start: int, stop: int) -> Any:
    if start == 0 and stop == sample.rows(batch):
        return batch
    return map_leaves(lambda leaf: leaf[start:stop], batch)


def _filled_up(update: Any, rows: int) -> Any:
    """(x, y, weight) of so many rows: the real ones weighted by what they are too few, then zeros."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(update)
    have = sample.rows(update)
    if weight is None:
        weight = np.ones(have, dtype="float32")
    if have == rows:
        return x, y, weight
    share = np.float32(rows / have)
    weight = map_leaves(lambda leaf: leaf * share, weight)
    return map_leaves(lambda leaf: filled(leaf, rows - have), (x, y, weight))


def filled(leaf: Any, rows: int) -> Any:
    """An array, or a tensor as an array, with so many rows of zeros at its end."""
    if not rows:
        return leaf
    array = np.asarray(leaf)
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), dtype=array.dtype)])
