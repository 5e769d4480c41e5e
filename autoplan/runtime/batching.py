"""Global, local and effective batch: the arguments of a `fit` under another batch, order and samples kept.

The last, partial effective batch of an epoch needs care as soon as an update takes several micro-steps: left alone, its
rows would wait in the accumulator for the next epoch and every later update would be another one than the script's.
Three ways, the first that is exact is taken (`remainder_mode`):

split  the r rows divide over the micro-steps of an update: as many smaller micro-batches
pad    micro-batches of full size, real rows weighted (effective batch / r), the others zero: exact where nothing looks
       at rows but through their weights
drop   the r mod accumulation rows that do not divide are left out of this epoch; the rest is split
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils

from autoplan.runtime import data
from autoplan.runtime.data import DataFacts
from cost_models.config import Batch


def remainder_mode(samples: int, wanted: Batch, *, weights_only: bool) -> str | None:
    """How the last effective batch of an epoch is run; None when there is none or nothing has to be done.

    weights_only: no BatchNorm, unweighted metric or custom training step looks at a row but through its weight.
    """
    rest = samples % wanted.effective
    if wanted.accumulation == 1 or rest == 0:
        return None
    if rest % wanted.accumulation == 0:
        return "split"
    return "pad" if weights_only else "drop"


def dropped_samples(samples: int, wanted: Batch, mode: str | None) -> int:
    """Samples an epoch that mode `drop` leaves out."""
    return samples % wanted.effective % wanted.accumulation if mode == "drop" else 0


def rebatch(
    arguments: dict[str, Any], facts: DataFacts, script: Batch, wanted: Batch, *, weights_only: bool
) -> dict[str, Any]:
    """The bound arguments of a fit under the wanted batch. Nothing changes when the two batches are equal."""
    if script == wanted:
        return arguments
    changed = dict(arguments)
    if facts.kind == "tf.data":
        changed["x"] = _rebatched_dataset(arguments["x"], wanted)
    elif facts.kind == "arrays":
        changed |= _rebatched_arrays(arguments, wanted, weights_only=weights_only)
    if facts.kind == "arrays" and arguments.get("validation_steps") and not arguments.get("validation_batch_size"):
        changed["validation_batch_size"] = script.global_size  # the batch that the script counts those steps in
    if facts.rebatchable and arguments.get("steps_per_epoch") is not None:
        changed["steps_per_epoch"] = arguments["steps_per_epoch"] * script.global_size // wanted.global_size
    return changed


def _rebatched_arrays(arguments: dict[str, Any], wanted: Batch, *, weights_only: bool) -> dict[str, Any]:
    mode = None
    if arguments.get("steps_per_epoch") is None:
        mode = remainder_mode(data.training_samples(arguments), wanted, weights_only=weights_only)
    if mode is None:
        return {"batch_size": wanted.global_size}
    training, validation = _split_validation(arguments)
    if arguments.get("class_weight") is not None:
        # Keras takes class weights for a PyDataset only where it brings no sample weights, and padding needs those.
        weights = data_adapter_utils.class_weight_to_sample_weights(training[1], arguments["class_weight"])
        training = (*training[:2], np.asarray(weights, dtype="float32"))
    batches = EffectiveBatches(training, wanted, mode=mode, shuffle=bool(arguments.get("shuffle", True)))
    validation_batch = arguments.get("validation_batch_size") or wanted.global_size
    return {
        "x": batches,
        "y": None,
        "sample_weight": None,
        "class_weight": None,
        "batch_size": None,
        "shuffle": False,  # EffectiveBatches shuffles samples itself, as `fit` would; this one would shuffle batches
        "validation_split": 0.0,
        "validation_data": validation,
        "validation_batch_size": validation_batch if validation is not None else None,
    }


def _split_validation(arguments: dict[str, Any]) -> tuple[Any, Any]:
    training = (arguments["x"], arguments.get("y"), arguments.get("sample_weight"))
    given = arguments.get("validation_data")
    if given is not None or not arguments.get("validation_split"):
        return training, given
    kept = data.training_samples(arguments)
    first = data.map_leaves(lambda leaf: data.rows_of(leaf, slice(None, kept)), training)
    last = data.map_leaves(lambda leaf: data.rows_of(leaf, slice(kept, None)), training)
    return first, last


class EffectiveBatches(keras.utils.PyDataset):
    """Micro-batches of arrays whose last effective batch of an epoch is partial.

    Every update sees the rows that the script's own update would see, shuffled as `fit` shuffles on JAX: one
    permutation an epoch from NumPy's global generator. Class weights have become sample weights by then.
    """

    def __init__(self, training: tuple[Any, Any, Any], wanted: Batch, *, mode: str, shuffle: bool) -> None:
        super().__init__()
        self._training, self._wanted, self._mode, self._shuffle = training, wanted, mode, shuffle
        self._samples = len(keras.tree.flatten(training[0])[0])
        self._order = np.arange(self._samples)
        full, rest = divmod(self._samples, wanted.effective)
        self._full_micro_steps = full * wanted.accumulation
        self._rest_micro_rows = rest // wanted.accumulation
        has_rest = rest > 0 and (mode == "pad" or self._rest_micro_rows > 0)
        self._micro_steps = self._full_micro_steps + (wanted.accumulation if has_rest else 0)

    def __len__(self) -> int:
        return self._micro_steps

    def __getitem__(self, index: int) -> Any:
        if index == 0 and self._shuffle:
            self._order = np.random.permutation(self._samples)  # noqa: NPY002 -- the generator that Keras draws from
        size = self._wanted.global_size
        if index < self._full_micro_steps:
            return self._batch(self._order[index * size : (index + 1) * size], padded=0)
        start = self._full_micro_steps * size
        position = index - self._full_micro_steps
        if self._mode == "pad":
            rows = self._order[start + position * size : start + (position + 1) * size]
            return self._batch(rows, padded=size - len(rows), last=True)
        size = self._rest_micro_rows
        return self._batch(self._order[start + position * size : start + (position + 1) * size], padded=0)

    def _batch(self, rows: Any, *, padded: int, last: bool = False) -> Any:
        x, y, weight = data.map_leaves(lambda leaf: data.rows_of(leaf, rows), self._training)
        if self._mode != "pad":
            return _packed(x, y, weight)
        if weight is None:
            weight = np.ones(len(rows), dtype="float32")
        if last:
            share = np.float32(self._wanted.effective / (self._samples % self._wanted.effective))
            weight = data.map_leaves(lambda leaf: leaf * share, weight)
        return data.map_leaves(lambda leaf: _padded(leaf, padded), (x, y, weight))


def _packed(x: Any, y: Any, weight: Any) -> Any:
    return (x, y, weight) if weight is not None else ((x, y) if y is not None else (x,))


def _padded(leaf: Any, rows: int) -> Any:
    return np.concatenate([leaf, np.zeros((rows, *leaf.shape[1:]), dtype=leaf.dtype)]) if rows else leaf


def _rebatched_dataset(dataset: Any, wanted: Batch) -> Any:
    """A tf.data pipeline in micro-batches: whole effective batches, each cut into the micro-steps of one update."""
    import tensorflow as tf

    effective = dataset.rebatch(wanted.effective)
    if wanted.accumulation == 1:
        return effective.prefetch(tf.data.AUTOTUNE)

    def cut(*elements: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(elements)[0])[0] // wanted.accumulation
        pieces = tf.nest.map_structure(_cutter(tf, rows, wanted.accumulation), elements)
        slices = tf.data.Dataset.from_tensor_slices(pieces)
        return slices.take(tf.where(rows > 0, tf.constant(wanted.accumulation, tf.int64), tf.constant(0, tf.int64)))

    cut_up = effective.flat_map(cut)
    cardinality = int(effective.cardinality())
    if cardinality >= 0:
        # Keras asks for the length; flat_map forgets it. The last effective batch may be too small to be cut.
        cut_up = (
            cut_up.apply(tf.data.experimental.assert_cardinality(cardinality * wanted.accumulation))
            if (_last_rows(dataset, wanted) >= wanted.accumulation)
            else cut_up
        )
    return cut_up.prefetch(tf.data.AUTOTUNE)


def _last_rows(dataset: Any, wanted: Batch) -> int:
    """Rows of the last effective batch where that is known without reading: full ones only; else 0."""
    spec = keras.tree.flatten(dataset.element_spec)[0].shape
    batch, batches = spec[0] if spec.rank else None, int(dataset.cardinality())
    if batch is None or batches < 0:
        return 0  # a batch of unknown size may be partial
    return int(batch * batches % wanted.effective) or wanted.effective


def _cutter(tf: Any, rows: Any, pieces: int) -> Callable[[Any], Any]:
    def cut(tensor: Any) -> Any:
        kept = tensor[: rows * pieces]
        shape = tf.concat([[pieces, rows], tf.shape(tensor)[1:]], axis=0)
        cut_tensor = tf.reshape(kept, shape)
        return tf.ensure_shape(cut_tensor, [pieces, None, *tensor.shape[1:]])

    return cut
