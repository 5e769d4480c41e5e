"""Regroups the batches of `PyDataset`s and generators into the micro-steps of each update.

Keras's own adapters still read the script's data, so order, shuffling, class weights, threads, processes and callbacks
between epochs are Keras's. Their batches are concatenated to the rows of one update and split into its micro-steps.
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

from autoplan.runtime.data import nested_arrays
from autoplan.runtime.data.nested_arrays import map_leaves
from cost_models.config import Batch


@dataclass
class Regrouping:
    """How the script's batches become the wanted micro-batches.

    If the effective batch stays the same, an update consists of the same batches as in the script, even if a partial
    batch is among them. Otherwise it consists of the next `wanted.effective` rows. An update with fewer rows is split
    into equal micro-steps.

    padded        a partial update is first padded with rows of weight zero, and its real rows get larger weights (the
                  mode `pad` of `rebatch`); every batch then has weights. Otherwise rows that do not divide are dropped
    dropped_rows  number of rows that were dropped so far
    """

    script: Batch
    wanted: Batch
    padded: bool = False
    dropped_rows: int = 0

    @property
    def keeps_updates(self) -> bool:
        return self.script.effective == self.wanted.effective

    @property
    def max_batches_per_update(self) -> int:
        """The largest number of the script's batches in one update."""
        return max(self.script.accumulation, -(-self.wanted.effective // self.script.global_size))

    def micro_steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the micro-batches of each update."""
        for update in self._updates(iter(batches)):
            yield from self._cut(update)

    def micro_steps_per_epoch(self, batches: int, last_rows: int, *, shuffled: bool) -> int | None:
        """Return the micro-steps of an epoch of `batches` batches, the last with `last_rows` rows.

        Returns None if the number depends on the order of the batches.
        """
        sizes = self.partial_updates(batches, last_rows)
        counts = {self._count(batches, last_rows, partial) for partial in (sizes if shuffled else sizes[:1])}
        return counts.pop() if len(counts) == 1 else None

    def partial_updates(self, batches: int, last_rows: int) -> list[tuple[int, ...]]:
        """Return the rows of the partial updates of an epoch.

        The first tuple is for an epoch with its smaller batch at the end. A second tuple, if the result differs, is for
        an epoch with that batch elsewhere.
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
            yield concatenate(taken)

    def _cut(self, update: Any) -> Iterator[Any]:
        pieces, rows = self.wanted.accumulation, nested_arrays.row_count(update)
        size = rows // pieces
        if self.padded:
            size = max(self.wanted.global_size, -(-rows // pieces))
            update = _padded(update, size * pieces)
        else:
            self.dropped_rows += rows - size * pieces
        if size:
            for start in range(0, size * pieces, size):
                yield _rows_between(update, start, start + size)


class Regrouped(data_adapter.DataAdapter):
    """A data adapter that yields the script's data in the micro-steps of each wanted update; x of `fit`.

    read          Keras's adapter of the script's data
    num_batches   micro-steps per epoch; None if it is not known
    """

    def __init__(self, read: Any, regrouping: Regrouping, num_batches: int | None) -> None:
        self._read, self._regrouping, self._num_batches = read, regrouping, num_batches

    @property
    def dropped_rows(self) -> int:
        """Samples that were dropped so far."""
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
        # No prefetch: batches of a generator that are in a buffer at the end of an epoch would be lost.
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


class LastBatches(keras.utils.PyDataset):
    """The last batches of a PyDataset."""

    def __init__(self, dataset: Any, batches: int) -> None:
        super().__init__()
        self._dataset, self._batches = dataset, batches

    @property
    def num_batches(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._dataset.num_batches - self._batches + index]


def regroup_batches(
    x: Any, regrouping: Regrouping, *, last_rows: int | None, shuffle: bool = False, class_weight: Any = None
) -> Regrouped:
    """Return a `PyDataset`, or a generator from `lookahead.buffer_first_batch`, under another batch.

    last_rows   rows of the last batch of a PyDataset's epoch
    shuffle     whether batches are shuffled, as `fit` does with a PyDataset
    """
    if isinstance(x, GeneratorType):
        return Regrouped(_generator_adapter(x, regrouping.max_batches_per_update), regrouping, None)
    count = None
    if x.num_batches is not None and last_rows is not None:
        count = regrouping.micro_steps_per_epoch(x.num_batches, last_rows, shuffled=shuffle)
    return Regrouped(get_data_adapter(x, class_weight=class_weight, shuffle=shuffle), regrouping, count)


def _generator_adapter(generator: Any, batches: int) -> Any:
    """Return Keras's adapter, which reads two batches ahead and yields them again once the model is built.

    The batches of one update are read here, because building may consume a whole update, which must not be lost.
    """
    adapter = GeneratorDataAdapter(generator)
    ahead = adapter._first_batches
    first = [*ahead, *itertools.islice(generator, max(0, batches - len(ahead)))]
    adapter.generator = lambda: itertools.chain(first, generator)
    return adapter


def concatenate(batches: list[Any]) -> Any:
    """Concatenate batches of one structure, in order."""
    if len(batches) == 1:
        return batches[0]
    return keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *batches, none_is_leaf=False)


def _by_rows(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Yield the same rows in batches of `rows`, with a smaller batch at the end."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        while (have := sum(map(nested_arrays.row_count, waiting))) >= rows:
            together = concatenate(waiting)
            yield _rows_between(together, 0, rows)
            waiting = [_rows_between(together, rows, have)] if have > rows else []
    if waiting:
        yield concatenate(waiting)


def _rows_between(batch: Any, start: int, stop: int) -> Any:
    if start == 0 and stop == nested_arrays.row_count(batch):
        return batch
    return map_leaves(lambda leaf: leaf[start:stop], batch)


def _padded(update: Any, rows: int) -> Any:
    """Pad an update to `rows` rows: (x, y, weight), with larger weights for the real rows and zeros after them."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(update)
    have = nested_arrays.row_count(update)
    if weight is None:
        weight = np.ones(have, dtype="float32")
    if have == rows:
        return x, y, weight
    share = np.float32(rows / have)
    weight = map_leaves(lambda leaf: leaf * share, weight)
    return map_leaves(lambda leaf: nested_arrays.pad_rows(leaf, rows - have), (x, y, weight))
