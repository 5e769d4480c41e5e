"""What the data of a `fit` is: how many samples, in which form, and what one batch of it looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import keras
import numpy as np

_DEFAULT_BATCH = 32  # what `fit` takes for arrays when it is not told


@dataclass(frozen=True)
class DataFacts:
    """kind: arrays | tf.data | other. Sizes in samples; None is "the data does not say".

    batch is the global batch of a micro-step, micro_steps those of an epoch.
    """

    kind: str
    samples: int | None
    batch: int
    micro_steps: int | None
    explicit_steps: bool

    @property
    def rebatchable(self) -> bool:
        return self.kind != "other"


def is_tf_dataset(x: Any) -> bool:
    """Whether x is a `tf.data.Dataset`, without importing TensorFlow."""
    return any(base.__module__.startswith("tensorflow") and base.__name__ == "DatasetV2" for base in type(x).__mro__)


def is_arrays(x: Any) -> bool:
    """Whether x is what `fit` slices: arrays, tensors, data frames, or a nest of them."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(
        (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or hasattr(leaf, "iloc") for leaf in leaves
    )


def describe(arguments: dict[str, Any], *, batch: int | None = None) -> DataFacts:
    """Read the facts off a fit's bound arguments.

    batch  rows of a `tf.data` batch where its own specification leaves them open; None looks at the first one. Looking
           is an iteration of its own: it takes rows from a pipeline that can be read once, and a shuffle counts it.
    """
    x, steps = arguments.get("x"), arguments.get("steps_per_epoch")
    if is_tf_dataset(x):
        return _describe_dataset(x, steps, batch)
    if is_arrays(x):
        return _describe_arrays(arguments, steps)
    return _describe_other(x, steps)


def _describe_arrays(arguments: dict[str, Any], steps: int | None) -> DataFacts:
    samples = training_samples(arguments)
    batch = arguments.get("batch_size") or (math.ceil(samples / steps) if steps else _DEFAULT_BATCH)
    micro_steps = math.ceil(samples / batch)
    return DataFacts("arrays", samples, batch, min(steps or micro_steps, micro_steps), steps is not None)


def training_samples(arguments: dict[str, Any]) -> int:
    """Samples that are left for training once `validation_split` is taken off (as Keras rounds it)."""
    samples = len(keras.tree.flatten(arguments["x"])[0])
    split = arguments.get("validation_split") or 0.0
    if split and arguments.get("validation_data") is None:
        samples = math.floor(samples * (1.0 - split))
    return samples


def _describe_dataset(dataset: Any, steps: int | None, known_batch: int | None) -> DataFacts:
    specified = keras.tree.flatten(dataset.element_spec)[0].shape
    batch = (specified[0] if specified.rank else None) or known_batch or _rows(first_batch(dataset))
    cardinality = int(dataset.cardinality())
    micro_steps = cardinality if cardinality >= 0 else None
    samples = None
    if micro_steps is not None:
        # An upper bound by one partial batch: counting it exactly would read the whole dataset.
        samples = micro_steps * batch
    if steps is not None:
        micro_steps, samples = steps, steps * batch
    return DataFacts("tf.data", samples, batch, micro_steps, steps is not None)


def _describe_other(x: Any, steps: int | None) -> DataFacts:
    micro_steps = steps
    if micro_steps is None and hasattr(x, "__len__"):
        micro_steps = len(x)
    batch = _rows(x[0]) if isinstance(x, keras.utils.PyDataset) else 0
    if not batch and hasattr(x, "batch_size") and x.batch_size:
        batch = int(x.batch_size)
    samples = micro_steps * batch if micro_steps and batch else None
    return DataFacts("other", samples, batch or _DEFAULT_BATCH, micro_steps, steps is not None)


def first_batch(x: Any) -> Any:
    """The first batch of an iterable that can be iterated again, as it comes."""
    return next(iter(x))


def _rows(batch: Any) -> int:
    return int(next(leaf.shape[0] for leaf in keras.tree.flatten(batch) if leaf is not None))


def sample_batch(arguments: dict[str, Any], facts: DataFacts, batch_size: int) -> tuple[Any, Any, Any] | None:
    """(x, y, sample_weight) of one real batch of `batch_size` rows, rows repeated where the data has too few.

    None when looking would consume the data (a generator).
    """
    if facts.kind == "arrays":
        weight = arguments.get("sample_weight")
        if weight is None and arguments.get("class_weight") is not None:
            weight = np.ones(training_samples(arguments), dtype="float32")
        batch = (arguments["x"], arguments.get("y"), weight)
    elif facts.kind == "tf.data":
        batch = keras.utils.unpack_x_y_sample_weight(first_batch(arguments["x"]))
        if batch[2] is None and arguments.get("class_weight") is not None:
            batch = (batch[0], batch[1], np.ones(_rows(batch[0]), dtype="float32"))
    elif isinstance(arguments["x"], keras.utils.PyDataset):
        batch = keras.utils.unpack_x_y_sample_weight(arguments["x"][0])
    else:
        return None
    return _with_rows(batch, batch_size)


def shapes_of_a_batch(arguments: dict[str, Any], facts: DataFacts) -> tuple[Any, Any, Any] | None:
    """(x, y, sample_weight) of one row each, only their shapes and dtypes of meaning; nothing is consumed."""
    if facts.kind != "tf.data":
        return sample_batch(arguments, facts, 1)
    spec = keras.utils.unpack_x_y_sample_weight(arguments["x"].element_spec)
    blank = map_leaves(lambda leaf: np.zeros([size or 1 for size in leaf.shape], leaf.dtype.as_numpy_dtype), spec)
    return cast("tuple[Any, Any, Any]", blank)


def _with_rows(batch: Any, rows: int) -> tuple[Any, Any, Any]:
    def take(leaf: Any) -> Any:
        if leaf is None:
            return None
        array = np.asarray(leaf[: min(rows, len(leaf))])
        if len(array) < rows:
            array = np.resize(array, (rows, *array.shape[1:]))
        return array

    taken: tuple[Any, Any, Any] = map_leaves(take, batch)
    return taken


def rows_of(leaf: Any, index: Any) -> Any:
    """Rows of an array, tensor or data frame, as a NumPy array."""
    return leaf.iloc[index].to_numpy() if hasattr(leaf, "iloc") else np.asarray(leaf)[index]


def map_leaves(function: Any, nest: Any) -> Any:
    """`keras.tree.map_structure` that passes None through."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {key: map_leaves(function, value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        return type(nest)(map_leaves(function, value) for value in nest)
    return function(nest)
