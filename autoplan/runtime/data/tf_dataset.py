"""Splits each update of a tf.data pipeline into its micro-steps, and reads the batch size that a pipeline states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.trainers.data_adapters import get_data_adapter

from cost_models.config import Batch

_KEEP_BATCHES = ("Prefetch", "Options", "Cache", "Shuffle", "Repeat", "Take", "Skip", "AssertCardinality")
"""Operations that change no batch, as their classes are named."""


def stated_batch(dataset: Any) -> int | None:
    """Return the batch size that the pipeline's last `batch` was given, without reading the pipeline.

    None if operations follow that may change batches, or if there is no `batch`.
    """
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        if not any(name in type(dataset).__name__ for name in _KEEP_BATCHES):
            return None
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def micro_batches(
    training: tuple[Any, Any, Any], wanted: Batch, micro_steps: int, *, padded: bool, shuffle: Any
) -> Any:
    """Return a pipeline of micro-batches of arrays, which Keras feeds and shuffles as it does on TensorFlow.

    training      (x, y, weight), with None for absent ones
    micro_steps   number per epoch
    shuffle       as in `fit`
    """
    import tensorflow as tf

    x, y, weight = training
    adapter = get_data_adapter(x=x, y=y, sample_weight=weight, batch_size=wanted.effective, shuffle=shuffle)
    updates = adapter.get_tf_dataset()
    batches = updates.flat_map(micro_step_splitter(updates.element_spec, wanted, padded=padded))
    return batches.apply(tf.data.experimental.assert_cardinality(micro_steps)).prefetch(tf.data.AUTOTUNE)


def micro_step_splitter(spec: Any, wanted: Batch, *, padded: bool) -> Callable[..., Any]:
    """Return a function for `flat_map` that splits one update into a dataset of its micro-batches.

    spec    structure of an update
    padded  pad partial updates as in the mode `pad` of `rebatch`, so that every batch is (x, y, weight); otherwise rows
            that do not divide over the micro-steps are dropped
    """
    import tensorflow as tf

    def split(*elements: Any) -> Any:
        update = elements if isinstance(spec, tuple) else elements[0]
        rows = tf.shape(tf.nest.flatten(update)[0])[0]
        if padded:
            size = tf.maximum(wanted.global_size, -(-rows // wanted.accumulation))
            update = _padded(tf, update, rows, size * wanted.accumulation)
        else:
            size = rows // wanted.accumulation
        pieces = tf.nest.map_structure(lambda tensor: _pieces(tf, tensor, wanted.accumulation, size), update)
        count = tf.where(size > 0, tf.constant(wanted.accumulation, tf.int64), tf.constant(0, tf.int64))
        return tf.data.Dataset.from_tensor_slices(pieces).take(count)

    return split


def _padded(tf: Any, update: Any, rows: Any, wanted_rows: Any) -> Any:
    x, y, weight = keras.utils.unpack_x_y_sample_weight(update)
    if weight is None:
        weight = tf.ones([rows], "float32")
    share = wanted_rows / rows
    weight = tf.nest.map_structure(lambda tensor: tensor * tf.cast(share, tensor.dtype), weight)

    def filled(tensor: Any) -> Any:
        return tf.pad(tensor, [[0, wanted_rows - rows], *([0, 0] for _ in tensor.shape[1:])])

    return tf.nest.map_structure(filled, (x, y, weight))


def _pieces(tf: Any, tensor: Any, count: int, size: Any) -> Any:
    shape = tf.concat([[count, size], tf.shape(tensor)[1:]], axis=0)
    return tf.ensure_shape(tf.reshape(tensor[: size * count], shape), [count, None, *tensor.shape[1:]])
