"""Counts, takes and pads the rows of batches that are nested structures of arrays, and maps functions over them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def row_count(batch: Any) -> int:
    """Return the first dimension of the first array of a batch; 0 if the batch contains no array."""
    for leaf in keras.tree.flatten(batch):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    return 0


def take_rows(leaf: Any, index: Any) -> Any:
    """Return rows of an array, tensor or data frame as a NumPy array."""
    return leaf.iloc[index].to_numpy() if hasattr(leaf, "iloc") else np.asarray(leaf)[index]


def pad_rows(leaf: Any, rows: int) -> Any:
    """Append `rows` rows of zeros to an array or tensor; a padded tensor becomes a NumPy array."""
    if not rows:
        return leaf
    array = np.asarray(leaf)
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), dtype=array.dtype)])


def map_leaves(function: Any, nest: Any) -> Any:
    """Apply a function to every leaf, as `keras.tree.map_structure` does, but leave None as it is."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {key: map_leaves(function, value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        values = (map_leaves(function, value) for value in nest)
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return function(nest)


def as_tuple(batch: Any) -> Any:
    """Return a batch as Keras's adapters pass it on: a list becomes a tuple, a single array a tuple of one."""
    if isinstance(batch, list):
        return tuple(batch)
    return (batch,) if isinstance(batch, np.ndarray) else batch


def is_dense(batch: Any) -> bool:
    """Return whether every leaf is an array whose rows can be sliced and concatenated: not sparse, not ragged."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    return bool(leaves) and all(
        hasattr(leaf, "__array__") and len(getattr(leaf, "shape", ())) > 0 and not _is_sparse(leaf) for leaf in leaves
    )


def _is_sparse(leaf: Any) -> bool:
    name = f"{type(leaf).__module__}.{type(leaf).__name__}".lower()
    return any(word in name for word in ("sparse", "bcoo", "bcsr", "ragged"))
