"""Finds input columns that lose values if they are rounded to 16-bit floating-point numbers: ids, years, large counts.

Under a mixed policy Keras converts float inputs to the compute dtype before the first layer, a normalization included.
bfloat16 has 8 significant bits and float16 has 11, so whole numbers above 256 or 2,048 are rounded to their neighbours,
and a year of 2,026 becomes 2,032 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import ml_dtypes
import numpy as np

from cost_models.config import Precision

_DTYPES: dict[Precision, Any] = {Precision.MIXED_BFLOAT16: ml_dtypes.bfloat16, Precision.MIXED_FLOAT16: np.float16}
_LOST_SHARE = 0.1
"""Rounding of a column by more than this share of its standard deviation is reported, as a root mean square."""
_MOST_COLUMNS = 1024
"""Inputs with more features than this are judged as one column."""


def lost_values(model: Any, x: Any) -> dict[str, str]:
    """Return what each 16-bit policy would lose of the inputs `x` of some rows, by the policy's name.

    A policy is named if under it different whole numbers of a column become the same number, a value overflows, or a
    column is rounded by more than a tenth of its standard deviation. Integer inputs are judged only where the model
    declares the input as float; layers such as Embedding take integers as they are.
    """
    found: dict[str, str] = {}
    for name, leaf in _float_inputs(model, x):
        for column, values in _columns(leaf):
            for policy, dtype in _DTYPES.items():
                lost = "" if policy.value in found else _lost(values, dtype)
                if lost:
                    where = f"column {column} of {name}" if column is not None else name
                    found[policy.value] = f"{where} {lost}"
    return found


def _float_inputs(model: Any, x: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and values of the inputs that the model receives as floating-point numbers."""
    declared = list(getattr(model, "inputs", None) or [])
    by_name = {tensor.name: tensor for tensor in declared}
    leaves = [(path, np.asarray(leaf)) for path, leaf in keras.tree.flatten_with_path(x) if leaf is not None]
    for at, (path, leaf) in enumerate(leaves):
        key = path[-1] if path else None
        tensor = by_name.get(key, declared[at] if len(declared) == len(leaves) else None)
        is_float = keras.backend.is_float_dtype(tensor.dtype) if tensor is not None else leaf.dtype.kind == "f"
        if is_float and leaf.dtype.kind in "iuf":
            named = f"the input {key!r}" if isinstance(key, str) else "the input" if len(leaves) == 1 else f"input {at}"
            yield named, leaf


def _columns(leaf: Any) -> Iterator[tuple[int | None, Any]]:
    """Yield the values of each feature, the last dimension, with its position; None for an input without features."""
    if leaf.ndim < 2 or not 1 < leaf.shape[-1] <= _MOST_COLUMNS:
        yield None, leaf.reshape(-1).astype("float64")
        return
    features = leaf.reshape(-1, leaf.shape[-1]).astype("float64")
    for column in range(features.shape[1]):
        yield column, features[:, column]


def _lost(values: Any, dtype: Any) -> str:
    """Return what a dtype loses of a column, as the predicate of a sentence; "" if it is little."""
    values = values[np.isfinite(values)]
    if not values.size:
        return ""
    with np.errstate(over="ignore"):
        rounded = values.astype("float32").astype(dtype).astype("float64")
    if not np.isfinite(rounded).all():
        return f"has values up to {np.abs(values).max():,.4g}, which overflow"
    distinct = np.unique(values)
    if (distinct == np.floor(distinct)).all():
        return _merged(distinct, dtype)
    spread = float(values.std())
    error = float(np.sqrt(np.mean((rounded - values) ** 2)))
    if spread and error > _LOST_SHARE * spread:
        return f"varies by {spread:.2g} around {values.mean():,.4g}, and would be rounded by {error:.2g}"
    return ""


def _merged(distinct: Any, dtype: Any) -> str:
    """Return which two of these whole numbers, in ascending order, become the same number."""
    rounded = distinct.astype("float32").astype(dtype).astype("float64")
    same = np.flatnonzero(np.diff(rounded) == 0)
    if not same.size:
        return ""
    first, second = distinct[same[0]], distinct[same[0] + 1]
    return f"has whole numbers up to {distinct[-1]:,.0f}, of which {first:,.0f} and {second:,.0f} would become the same"
