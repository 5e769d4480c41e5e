"""Chooses real rows of a fit's data for a probe: the first, the last, and those that differ most from each other.

Halves of an update may be equal by accident, for example if all of their rows have labels. So some of the chosen
batches have the most different rows in their two halves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from autoplan.runtime.data import data_facts, lookahead, nested_arrays, torch_dataloader
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments, without

_READ_BATCHES = 3
"""Batches that are read in any case, if the data have as many."""
_READ_SECONDS = 1.0
"""Time after which no further batches are read."""
_FEWEST_ROWS = 4
_AFFORDABLE_FLOPS = 2 * 10**11
_MOST_KEYS = 4
"""Targets by which rows are compared, and weights."""
_COMPARED_ROWS = 4096
_COMPARED_BYTES = 2**26


@dataclass(frozen=True)
class SampleRows:
    """Rows of a fit's data, in the form in which `fit` takes them.

    kind    kind of the data, see `DataFacts`
    leaves  nested arrays: {"x", "y", "sample_weight"} of arrays, or a batch as an iterable yields it
    has_class_weights  whether the sample weights include the weights of classes
    padded  number of rows that are padding
    """

    kind: str
    leaves: Any
    has_class_weights: bool = False
    padded: int = 0

    @property
    def count(self) -> int:
        return nested_arrays.row_count(self.leaves)

    def take(self, index: Any) -> SampleRows:
        """Return some of the rows, by a slice or by indices."""
        leaves = nested_arrays.map_leaves(lambda leaf: nested_arrays.take_rows(leaf, index), self.leaves)
        return replace(self, leaves=leaves)

    def parts(self, count: int) -> list[SampleRows]:
        """Return the rows in `count` equal parts, in their order."""
        size = self.count // count
        return [self.take(slice(size * part, size * (part + 1))) for part in range(count)]

    def fit_arguments(self, arguments: FitArguments) -> dict[str, Any]:
        """Return the data arguments of a `fit` with one micro-step over these rows."""
        class_weight = None if self.has_class_weights else arguments.get("class_weight")
        data: dict[str, Any] = {"class_weight": class_weight}
        if self.kind == "arrays":
            return {**data, **self.leaves, "batch_size": self.count}
        return {**data, "x": _one_batch(self.kind, self.leaves)}


class _OneBatch(keras.utils.PyDataset):
    """A data set of one batch."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self._batch = batch

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self._batch


def _one_batch(kind: str, batch: Any) -> Any:
    if kind == "tf.data":
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(batch)
    if kind == "DataLoader":
        from torch.utils.data import DataLoader

        return DataLoader([batch], batch_size=None)
    return _OneBatch(batch)


class TrainingRows:
    """The rows of a fit from which a probe chooses: those of arrays, or those of the batches that it reads.

    Batches are read once, when they are first needed: the first ones, and further ones until a second has passed.
    """

    def __init__(self, arguments: FitArguments, facts: DataFacts) -> None:
        self._arguments, self._facts = arguments, facts
        self._read: list[Any] | None = None

    def chosen(self, count: int) -> list[SampleRows]:
        """Return batches of `count` rows, or fewer if the data have fewer, without repetitions.

        The first rows come first, and the last rows of arrays and of a `PyDataset` come last.
        """
        if self._facts.kind == "arrays":
            return _chosen(_arrays(self._arguments), count, data_facts.training_samples(self._arguments))
        joined = _joined(self._facts.kind, self._batches())
        if joined is not None:
            return _chosen(joined, count, joined.count)
        rows = [SampleRows(self._facts.kind, one) for one in self._batches()[:_READ_BATCHES]]
        return [one.take(slice(0, count)) for one in rows if one.count >= count]

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs of rows that are spread over the data; of batches that differ in shape, the first ones."""
        if self._facts.kind == "arrays":
            rows, samples = _arrays(self._arguments), data_facts.training_samples(self._arguments)
            yield rows.take(_sampled(rows, samples)).leaves["x"]
            return
        joined = _joined(self._facts.kind, self._batches())
        if joined is None:
            batches = self._batches()[:_READ_BATCHES]
        else:
            batches = [joined.take(_sampled(joined, joined.count)).leaves]
        for batch in batches:
            yield batch[0] if isinstance(batch, tuple) else batch

    def _batches(self) -> list[Any]:
        if self._read is None:
            self._read = list(_read_batches(self._arguments, self._facts))
        return self._read


def affordable_rows(model: Any, arguments: FitArguments) -> int:
    """Return the rows of which a micro-step takes about `_AFFORDABLE_FLOPS` at most, and no fewer than `_FEWEST_ROWS`.

    Each weight is assumed to be used at each position of a row: a token, or a pixel. That is more than a convolutional
    network computes, which has fewer positions in later layers.
    """
    tensors = [*keras.tree.flatten(arguments.get("x")), *keras.tree.flatten(getattr(model, "inputs", None) or [])]
    positions = max((_positions(one) for one in tensors if hasattr(one, "shape") and hasattr(one, "dtype")), default=1)
    flops_per_row = 6 * positions * max(1, model.count_params() if model.built else 1)
    return int(max(_FEWEST_ROWS, _AFFORDABLE_FLOPS // flops_per_row))


def _positions(tensor: Any) -> int:
    """Return the positions of a row: all dimensions but the batch and the features; integers have no features."""
    sizes = tuple(tensor.shape)[1:]
    return int(np.prod([size or 1 for size in (sizes if "int" in str(tensor.dtype) else sizes[:-1])], initial=1))


def _arrays(arguments: FitArguments) -> SampleRows:
    weight = arguments.get("sample_weight")
    leaves = {"x": arguments["x"], "y": arguments.get("y"), "sample_weight": weight}
    return SampleRows("arrays", {name: leaf for name, leaf in leaves.items() if leaf is not None})


def _read_batches(arguments: FitArguments, facts: DataFacts) -> Iterator[Any]:
    """Yield batches. This process ends after the probe, so data that can be read once may be read here."""
    x = arguments["x"]
    if facts.kind == "PyDataset":
        yield from lookahead.first_middle_last(x, facts.batches)
        return
    steps = facts.micro_steps if facts.explicit_steps else None  # endless data may go on for longer than the fit does
    if facts.kind == "DataLoader":
        x = torch_dataloader.like(x, num_workers=0) if x.num_workers and not facts.why_fixed else x
        yield from _cheap(map(nested_arrays.as_tuple, map(_numpy, itertools.islice(x, steps))))
    else:
        yield from _cheap(map(_numpy, itertools.islice(x, steps)))


def _cheap(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the first batches, and further ones while they are small and read fast."""
    started, read_bytes = time.monotonic(), 0
    for at, batch in enumerate(batches):
        yield batch
        read_bytes += sum(getattr(leaf, "nbytes", 0) for leaf in keras.tree.flatten(batch))
        enough = time.monotonic() - started > _READ_SECONDS or read_bytes > _COMPARED_BYTES
        if at + 1 >= _READ_BATCHES and enough:
            return


def _numpy(batch: Any) -> Any:
    return nested_arrays.map_leaves(np.asarray, batch)


def _joined(kind: str, batches: list[Any]) -> SampleRows | None:
    """Return the rows of all batches; None if batches differ in the shape of a row."""
    shapes = {tuple(np.shape(leaf)[1:] for leaf in keras.tree.flatten(batch)) for batch in batches}
    if len(shapes) != 1:
        return None
    flat = [keras.tree.flatten(batch) for batch in batches]
    leaves = [np.concatenate([np.asarray(leaf) for leaf in pieces]) for pieces in zip(*flat, strict=True)]
    return SampleRows(kind, keras.tree.pack_sequence_as(batches[0], leaves))


def _chosen(rows: SampleRows, count: int, samples: int) -> list[SampleRows]:
    count = min(count, samples // 2 * 2)
    if count == 0:
        return []
    sampled = _sampled(rows, samples)
    indices = [np.arange(count)]
    if samples > count:
        indices += [sampled[_extremes(key, count)] for key in _keys(rows.take(sampled)) if len(sampled) >= count]
        indices.append(np.arange(samples - count, samples))
    distinct = {tuple(index.tolist()): index for index in indices}
    return [rows.take(index) for index in distinct.values()]


def _sampled(rows: SampleRows, samples: int) -> Any:
    """Return the indices of at most some thousand rows, evenly spread, whose bytes are limited."""
    row_bytes = sum(_row_bytes(leaf) for leaf in keras.tree.flatten(rows.leaves) if leaf is not None)
    most = int(min(samples, _COMPARED_ROWS, max(1, _COMPARED_BYTES // max(1, row_bytes))))
    return np.unique(np.linspace(0, samples - 1, most).astype(int))


def _row_bytes(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    return int(np.prod(shape[1:])) * 8


def _keys(rows: SampleRows) -> list[Any]:
    """Return numbers by which rows may differ: the mean of their targets, repeated positions of inputs, and weights.

    Rows without a label have other targets, and masked positions have one value, mostly zero.
    """
    x, targets, weights = _inputs_targets_weights(rows)
    numbers = [leaf for leaf in targets if leaf.dtype.kind in "biuf"][:_MOST_KEYS]
    integers = [leaf for leaf in x if leaf.dtype.kind in "iu"][:1]
    series = [leaf for leaf in x if leaf.dtype.kind == "f" and leaf.ndim == 3][:1]
    keys = [np.nan_to_num(_flat(leaf).mean(axis=1), nan=-1e30) for leaf in numbers]
    keys += [(_flat(leaf) == 0).mean(axis=1) for leaf in integers]
    keys += [(leaf[:, 1:] == leaf[:, :-1]).all(axis=2).sum(axis=1) for leaf in series]
    keys += [_flat(leaf).mean(axis=1) for leaf in weights[:_MOST_KEYS]]
    return [key for key in keys if key.size and key.min() != key.max()]


def _inputs_targets_weights(rows: SampleRows) -> tuple[list[Any], list[Any], list[Any]]:
    if rows.kind == "arrays":
        parts = [rows.leaves.get(name) for name in ("x", "y", "sample_weight")]
    else:
        batch = rows.leaves if isinstance(rows.leaves, tuple) else (rows.leaves,)
        parts = [*batch, None, None][:3]
    x, targets, weights = (_leaves(part) for part in parts)
    return x, targets, weights


def _leaves(nest: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in keras.tree.flatten(nest) if leaf is not None]


def _flat(leaf: Any) -> Any:
    return leaf.reshape(len(leaf), -1).astype("float64")


def _extremes(key: Any, count: int) -> Any:
    """Return the positions of the rows with the smallest keys, then of those with the largest."""
    order = np.argsort(key, kind="stable")
    half = count // 2
    return np.concatenate([order[:half], order[len(order) - half :]])


def one_batch_arguments(arguments: FitArguments, rows: SampleRows) -> dict[str, Any]:
    """Return the arguments of a `fit` that runs one micro-step over these rows, and nothing else."""
    kept = without(
        arguments,
        *("x", "y", "sample_weight", "class_weight", "batch_size", "callbacks", "validation_data", "validation_split"),
        *("validation_steps", "validation_batch_size", "validation_freq", "epochs", "initial_epoch"),
        *("steps_per_epoch", "shuffle", "verbose"),
    )
    run: dict[str, Any] = {"epochs": 1, "steps_per_epoch": 1, "shuffle": False, "verbose": 0}
    return {**kept, **rows.fit_arguments(arguments), **run}
