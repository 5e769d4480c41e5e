"""What the data of a `fit` is: how many samples, in which form, and what one batch of it looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import keras
import numpy as np

from autoplan.runtime.data import dataloader, sample

_DEFAULT_BATCH = 32  # what `fit` takes for arrays when it is not told


@dataclass(frozen=True)
class DataFacts:
    """kind: arrays | tf.data | PyDataset | DataLoader | generator | synthetic | other.

    Sizes are in samples; None is "the data does not say". batch is the global batch of a micro-step, micro_steps are
    those of an epoch, last_rows are the rows of an epoch's last batch where that was looked at. why_fixed says why the
    batches must stay as they come; it is empty where they can be cut anew. Unless exact, samples are those of full
    batches, and a partial one may come.
    """

    kind: str
    samples: int | None
    batch: int
    micro_steps: int | None
    explicit_steps: bool
    why_fixed: str = ""
    last_rows: int | None = None
    exact: bool = True

    @property
    def batches(self) -> int | None:
        """Batches of a pass over the data, where the data itself says it."""
        return None if self.explicit_steps else self.micro_steps

    @property
    def rebatchable(self) -> bool:
        return self.kind != "other" and not self.why_fixed


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
    """Read the facts off a fit's bound arguments, which came through `peek.lookable`.

    batch  rows of a `tf.data` batch where its own specification leaves them open; None looks at the first one. Looking
           is an iteration of its own: it takes rows from a pipeline that can be read once, and a shuffle counts it.
    """
    x, steps = arguments.get("x"), arguments.get("steps_per_epoch")
    if is_tf_dataset(x):
        return _describe_dataset(x, steps, batch)
    if is_arrays(x):
        return _describe_arrays(arguments, steps)
    if isinstance(x, keras.utils.PyDataset):
        return _describe_py_dataset(x, steps)
    if isinstance(x, GeneratorType):
        return _describe_generator(x, steps)
    if dataloader.is_loader(x):
        return _describe_loader(x, steps)
    return _describe_other(x, steps)


def _describe_arrays(arguments: dict[str, Any], steps: int | None) -> DataFacts:
    samples = training_samples(arguments)
    batch = arguments.get("batch_size") or (math.ceil(samples / steps) if steps else _DEFAULT_BATCH)
    micro_steps = math.ceil(samples / batch)
    return DataFacts("arrays", samples, batch, min(steps or micro_steps, micro_steps), steps is not None)


def training_samples(arguments: dict[str, Any]) -> int:
    """Samples that are left for training once `validation_split` is taken off (as Keras rounds it)."""
    samples = sample.rows(arguments["x"])
    split = arguments.get("validation_split") or 0.0
    if split and arguments.get("validation_data") is None:
        samples = math.floor(samples * (1.0 - split))
    return samples


def _describe_dataset(dataset: Any, steps: int | None, known_batch: int | None) -> DataFacts:
    specs = keras.tree.flatten(dataset.element_spec)
    specified = specs[0].shape[0] if specs[0].shape.rank else None
    batch = specified or known_batch or sample.rows(first_batch(dataset)) or _DEFAULT_BATCH
    cardinality = int(dataset.cardinality())
    micro_steps = cardinality if cardinality >= 0 else None
    samples = None
    if micro_steps is not None:
        # An upper bound by one partial batch: counting it exactly would read the whole dataset.
        samples = micro_steps * batch
    if steps is not None:
        micro_steps, samples = steps, steps * batch
    dense = all(type(spec).__name__ == "TensorSpec" for spec in specs)
    why_fixed = "" if dense else "its batches are not tensors of one shape throughout"
    exact = specified is not None
    return DataFacts("tf.data", samples, batch, micro_steps, steps is not None, why_fixed=why_fixed, exact=exact)


def _describe_py_dataset(dataset: Any, steps: int | None) -> DataFacts:
    batches: int | None = dataset.num_batches
    looked = sample.first_middle_last(dataset, batches)
    sizes = [sample.rows(batch) for batch in looked] or [0]
    samples = steps * sizes[0] if steps else batches and (batches - 1) * sizes[0] + sizes[-1]
    return DataFacts(
        "PyDataset",
        0 if batches == 0 else samples or None,
        sizes[0] or _DEFAULT_BATCH,
        steps or batches,
        steps is not None,
        why_fixed=_why_fixed(looked, sizes, endless=batches is None),
        last_rows=None if batches is None else sizes[-1],
    )


def _why_fixed(looked: list[Any], sizes: list[int], *, endless: bool) -> str:
    """Why batches cannot be joined and cut, as far as looking at some of them tells."""
    if not all(sample.is_dense(batch) for batch in looked):
        return "its batches are not arrays throughout"
    if len(set(sizes if endless else sizes[:-1])) > 1 or sizes[-1] > sizes[0]:
        return f"its batches differ in their number of samples ({', '.join(map(str, sizes))})"
    shapes = {
        tuple(tuple(leaf.shape[1:]) for leaf in keras.tree.flatten(batch) if leaf is not None) for batch in looked
    }
    return "its batches differ in shape" if len(shapes) > 1 else ""


def _describe_generator(generator: Any, steps: int | None) -> DataFacts:
    first = sample.first_of(generator)
    batch = sample.rows(first) if first is not None else 0
    dense = first is not None and sample.is_dense(first)
    return DataFacts(
        "generator",
        steps * batch if steps and batch else None,
        batch or _DEFAULT_BATCH,
        steps,
        steps is not None,
        why_fixed="" if dense else "its batches are not arrays throughout",
        exact=False,
    )


def _describe_loader(loader: Any, steps: int | None) -> DataFacts:
    batch, samples, micro_steps = (
        dataloader.batch_of(loader),
        dataloader.samples_of(loader),
        dataloader.micro_steps_of(loader),
    )
    return DataFacts(
        "DataLoader",
        steps * batch if steps else samples,
        batch,
        steps or micro_steps,
        steps is not None,
        why_fixed=dataloader.why_fixed(loader),
        last_rows=samples and (samples % batch or batch),
    )


def _describe_other(x: Any, steps: int | None) -> DataFacts:
    micro_steps = steps
    if micro_steps is None and hasattr(x, "__len__"):
        micro_steps = len(x)
    batch = int(getattr(x, "batch_size", None) or 0)
    samples = micro_steps * batch if micro_steps and batch else None
    return DataFacts("other", samples, batch or _DEFAULT_BATCH, micro_steps, steps is not None)


def first_batch(x: Any) -> Any:
    """The first batch of an iterable that can be iterated again, as it comes."""
    return next(iter(x))


def sample_batch(arguments: dict[str, Any], facts: DataFacts, batch_size: int) -> Any:
    """One real batch of `batch_size` rows as `train_step` gets it, rows repeated where the data has too few.

    None where there is none to be had: data of an unknown kind, or sparse.
    """
    batch = _one_batch(arguments, facts)
    if batch is None or not sample.is_dense(batch):
        return None
    if facts.kind == "arrays":
        return map_leaves(_in_own_float_type, _with_rows(batch, batch_size))
    return _with_rows(_weighted(batch, arguments), batch_size)


def _in_own_float_type(array: Any) -> Any:
    """Keras feeds arrays of floating point in its own type, whatever theirs is."""
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _weighted(batch: Any, arguments: dict[str, Any]) -> Any:
    """A batch of the script's own with what Keras makes of class weights: a weight for each sample."""
    if arguments.get("class_weight") is None or not isinstance(batch, tuple) or len(batch) != 2:
        return batch
    return (*batch, np.ones(sample.rows(batch), dtype="float32"))


def _one_batch(arguments: dict[str, Any], facts: DataFacts) -> Any:
    x = arguments.get("x")
    if facts.kind == "arrays":
        weight = arguments.get("sample_weight")
        if weight is None and arguments.get("class_weight") is not None:
            weight = np.ones(training_samples(arguments), dtype="float32")
        return keras.utils.pack_x_y_sample_weight(x, arguments.get("y"), weight)
    if facts.kind == "tf.data":
        return first_batch(x)
    if facts.kind == "PyDataset":
        return next(iter(sample.first_middle_last(x, 1)))
    if facts.kind == "DataLoader":
        return sample.standardized(dataloader.first_batch(x))
    return sample.first_of(x)


def shapes_of_a_batch(arguments: dict[str, Any], facts: DataFacts) -> Any:
    """A batch of one row, only its shapes and dtypes of meaning; nothing is consumed. None where there is none."""
    if facts.kind != "tf.data":
        return sample_batch(arguments, facts, 1)
    spec = arguments["x"].element_spec
    blank = map_leaves(lambda leaf: np.zeros([size or 1 for size in leaf.shape], leaf.dtype.as_numpy_dtype), spec)
    return _weighted(blank, arguments)


def _with_rows(batch: Any, rows: int) -> Any:
    def take(leaf: Any) -> Any:
        array = np.asarray(leaf[: min(rows, len(leaf))])
        if len(array) < rows:
            array = np.resize(array, (rows, *array.shape[1:]))
        return array

    return map_leaves(take, batch)


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
        values = (map_leaves(function, value) for value in nest)
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return function(nest)
