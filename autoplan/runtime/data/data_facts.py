"""Describes the data of a `fit` as `DataFacts` (form, number of samples, batch size), and returns a sample batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any

import keras
import numpy as np

from autoplan.runtime.data import batch_shapes, lookahead, nested_arrays, tf_dataset, torch_dataloader
from autoplan.runtime.data.batch_shapes import BatchShapes, Shapes
from autoplan.runtime.data.fit_arguments import FitArguments

_DEFAULT_BATCH = 32  # the default of `fit` for arrays


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data of a fit. None means "not known".

    kind           arrays | tf.data | PyDataset | DataLoader | generator | synthetic | other
    samples        samples of an epoch
    batch          global batch of a micro-step
    micro_steps    micro-steps of an epoch
    explicit_steps whether the script sets steps_per_epoch
    why_fixed      why the data cannot be re-batched; empty if they can
    last_rows      rows of the last batch of an epoch, if it was looked at
    exact          False if samples counts full batches, and a batch may be partial
    why_not_joined why batches cannot be concatenated, although each can be split; empty if they can
    shapes         shapes of the batches, if they were looked at
    sampled        shapes of the batch that `sample_batch` returns, instead of those of the first batch
    input_shapes   shapes of inputs without the batch that the user gave for synthetic data, by name
    """

    kind: str
    samples: int | None
    batch: int
    micro_steps: int | None
    explicit_steps: bool
    why_fixed: str = ""
    last_rows: int | None = None
    exact: bool = True
    why_not_joined: str = ""
    shapes: BatchShapes | None = None
    sampled: Shapes | None = None
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def batches(self) -> int | None:
        """Batches of a pass over the data, if the data have a length."""
        return None if self.explicit_steps else self.micro_steps

    @property
    def rebatchable(self) -> bool:
        return self.kind != "other" and not self.why_fixed


def is_tf_dataset(x: Any) -> bool:
    """Return whether x is a `tf.data.Dataset`, without importing TensorFlow."""
    return any(base.__module__.startswith("tensorflow") and base.__name__ == "DatasetV2" for base in type(x).__mro__)


def is_arrays(x: Any) -> bool:
    """Return whether `fit` slices x: arrays, tensors, data frames, or a nested structure of these."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(
        (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or hasattr(leaf, "iloc") for leaf in leaves
    )


def describe(arguments: FitArguments, *, batch: int | None = None, look_seconds: float = 0.0) -> DataFacts:
    """Return the facts about the arguments of a fit, which `lookahead.buffer_first_batch` has returned.

    batch         rows of a `tf.data` batch if the pipeline does not state them; None reads the first batch. Reading it
                  is an iteration of its own: it consumes rows of a pipeline that can be read only once, and advances a
                  shuffle.
    look_seconds  time for looking at further batches, which is such an iteration too; 0 looks at none
    """
    facts = _described(arguments, batch)
    return facts if not look_seconds else _with_shapes(facts, _look(arguments, facts, look_seconds))


def _look(arguments: FitArguments, facts: DataFacts, seconds: float) -> BatchShapes | None:
    """Look at the batches of data that can be read again; of others, only the first batch is known."""
    x, batches = arguments.get("x"), facts.micro_steps
    if facts.explicit_steps and batches is not None:  # Keras goes on in the data where the epoch before has ended
        batches *= max(1, arguments.get("epochs", 1) - arguments.get("initial_epoch", 0))
    if facts.kind == "tf.data":
        return batch_shapes.of_tf_dataset(x, batches, seconds)
    if facts.kind == "PyDataset" and isinstance(x, keras.utils.PyDataset):
        return batch_shapes.of_py_dataset(x, x.num_batches, seconds)
    if facts.kind == "DataLoader":
        return batch_shapes.of_loader(x, torch_dataloader.micro_steps_of(x), seconds)
    first = lookahead.buffered_batch(x) if facts.kind == "generator" else None
    return None if first is None else batch_shapes.of_first(first, batches)


def _with_shapes(facts: DataFacts, shapes: BatchShapes | None) -> DataFacts:
    """Return the facts with what the look showed: the usual batch, the samples, and whether batches can be joined."""
    if shapes is None:
        return facts
    changes: dict[str, Any] = {"shapes": shapes}
    reason = batch_shapes.why_not_regrouped(shapes)
    if facts.kind == "PyDataset" and reason:
        changes["why_fixed"] = reason
    if facts.kind == "tf.data":
        changes |= _of_pipeline(facts, shapes, reason)
    if facts.kind in ("tf.data", "PyDataset") and shapes.differ_in_rows:
        changes |= _of_differing_rows(facts, shapes)
    if shapes.differ_in_shape:
        changes["sampled"] = shapes.common
    return replace(facts, **changes)


def with_usual_batch(facts: DataFacts, shapes: Sequence[Sequence[int]]) -> DataFacts:
    """Return the facts of data whose usual batch has these shapes, as an earlier look has found."""
    sampled = tuple(tuple(shape) for shape in shapes)
    if facts.kind in ("tf.data", "PyDataset"):
        facts = replace(facts, batch=sampled[0][0])
    return replace(facts, sampled=sampled)


def _of_pipeline(facts: DataFacts, shapes: BatchShapes, reason: str) -> dict[str, Any]:
    """Return why a tf.data pipeline cannot be re-batched: TensorFlow can split and join rows of one shape only."""
    if shapes.differ_in_shape:
        held = shapes.differ_in_rows
        return {"why_fixed": reason if held else "", "why_not_joined": "" if held else reason}
    if facts.why_not_joined and not shapes.complete:
        return {"why_not_joined": f"{facts.why_not_joined} ({shapes.progress})"}
    return {"why_not_joined": ""}


def _of_differing_rows(facts: DataFacts, shapes: BatchShapes) -> dict[str, Any]:
    """Return the usual batch, and the samples of an epoch by the mean number of rows of the batches looked at."""
    changes: dict[str, Any] = {"batch": shapes.common[0][0], "exact": shapes.complete and not facts.explicit_steps}
    if facts.micro_steps is not None:
        changes["samples"] = round(facts.micro_steps * shapes.samples / shapes.looked)
    elif shapes.complete:
        changes |= {"samples": shapes.samples, "micro_steps": shapes.batches}
    return changes


def _described(arguments: FitArguments, batch: int | None) -> DataFacts:
    x, steps = arguments.get("x"), arguments.get("steps_per_epoch")
    if is_tf_dataset(x):
        return _describe_dataset(x, steps, batch)
    if is_arrays(x):
        return _describe_arrays(arguments, steps)
    if isinstance(x, keras.utils.PyDataset):
        return _describe_py_dataset(x, steps)
    if isinstance(x, GeneratorType):
        return _describe_generator(x, steps)
    if torch_dataloader.is_loader(x):
        return _describe_loader(x, steps)
    return _describe_other(x, steps)


def _describe_arrays(arguments: FitArguments, steps: int | None) -> DataFacts:
    samples = training_samples(arguments)
    batch = arguments.get("batch_size") or (math.ceil(samples / steps) if steps else _DEFAULT_BATCH)
    micro_steps = math.ceil(samples / batch)
    return DataFacts("arrays", samples, batch, min(steps or micro_steps, micro_steps), steps is not None)


def training_samples(arguments: FitArguments) -> int:
    """Return the number of training samples without those of `validation_split`, rounded as Keras rounds."""
    samples = nested_arrays.row_count(arguments["x"])
    split = arguments.get("validation_split") or 0.0
    if split and arguments.get("validation_data") is None:
        samples = math.floor(samples * (1.0 - split))
    return samples


def _describe_dataset(dataset: Any, steps: int | None, known_batch: int | None) -> DataFacts:
    specs = keras.tree.flatten(dataset.element_spec)
    specified = specs[0].shape[0] if specs[0].shape.rank else None
    stated = specified or tf_dataset.stated_batch(dataset)
    batch = stated or known_batch or nested_arrays.row_count(first_batch(dataset)) or _DEFAULT_BATCH
    cardinality = int(dataset.cardinality())
    micro_steps = cardinality if cardinality >= 0 else None
    samples = None
    if micro_steps is not None:
        # This may count up to one batch too many: an exact count would read the whole dataset.
        samples = micro_steps * batch
    if steps is not None:
        micro_steps, samples = steps, steps * batch
    dense = all(type(spec).__name__ == "TensorSpec" for spec in specs)
    why_fixed = "" if dense else "its batches are not all dense tensors"
    free = dense and any(spec.shape.rank is None or None in spec.shape[1:] for spec in specs)
    return DataFacts(
        "tf.data",
        samples,
        batch,
        micro_steps,
        steps is not None,
        why_fixed=why_fixed,
        exact=specified is not None,
        why_not_joined="its batches may differ in shape" if free else "",
    )


def _describe_py_dataset(dataset: Any, steps: int | None) -> DataFacts:
    batches: int | None = dataset.num_batches
    looked = lookahead.first_middle_last(dataset, batches)
    sizes = [nested_arrays.row_count(batch) for batch in looked] or [0]
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
    """Return why batches cannot be concatenated and split, judged by some of them; "" if they can."""
    if not all(nested_arrays.is_dense(batch) for batch in looked):
        return "its batches are not all dense arrays"
    if len(set(sizes if endless else sizes[:-1])) > 1 or sizes[-1] > sizes[0]:
        return f"its batches differ in their number of samples ({', '.join(map(str, sizes))})"
    shapes = {
        tuple(tuple(leaf.shape[1:]) for leaf in keras.tree.flatten(batch) if leaf is not None) for batch in looked
    }
    return "its batches differ in shape" if len(shapes) > 1 else ""


def _describe_generator(generator: Any, steps: int | None) -> DataFacts:
    first = lookahead.buffered_batch(generator)
    batch = nested_arrays.row_count(first) if first is not None else 0
    dense = first is not None and nested_arrays.is_dense(first)
    return DataFacts(
        "generator",
        steps * batch if steps and batch else None,
        batch or _DEFAULT_BATCH,
        steps,
        steps is not None,
        why_fixed="" if dense else "its batches are not all dense arrays",
        exact=False,
    )


def _describe_loader(loader: Any, steps: int | None) -> DataFacts:
    batch, samples, micro_steps = (
        torch_dataloader.batch_of(loader),
        torch_dataloader.samples_of(loader),
        torch_dataloader.micro_steps_of(loader),
    )
    return DataFacts(
        "DataLoader",
        steps * batch if steps else samples,
        batch,
        steps or micro_steps,
        steps is not None,
        why_fixed=torch_dataloader.why_fixed(loader),
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
    """Return the first batch of an iterable that can be iterated again."""
    return next(iter(x))


def sample_batch(arguments: FitArguments, facts: DataFacts, batch_size: int) -> Any:
    """Return a real batch of `batch_size` rows as `train_step` receives it. Rows are repeated if the data have fewer.

    Returns None for data of an unknown kind and for sparse data.
    """
    batch = _in_shapes(_one_batch(arguments, facts), facts.sampled)
    if batch is None or not nested_arrays.is_dense(batch):
        return None
    if facts.kind == "arrays":
        return nested_arrays.map_leaves(_in_floatx, _with_rows(batch, batch_size))
    return _with_rows(_weighted(batch, arguments), batch_size)


def _in_shapes(batch: Any, shapes: Shapes | None) -> Any:
    """Return a batch of these shapes, which repeats the values of the given batch; unchanged without shapes."""
    if batch is None or shapes is None:
        return batch
    wanted = iter(shapes)
    return nested_arrays.map_leaves(lambda leaf: np.resize(np.asarray(leaf), next(wanted)), batch)


def _in_floatx(array: Any) -> Any:
    """Convert a floating-point array to `keras.config.floatx()`, as `fit` does."""
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _weighted(batch: Any, arguments: FitArguments) -> Any:
    """Add the sample weights that Keras makes of class weights to a batch."""
    if arguments.get("class_weight") is None or not isinstance(batch, tuple) or len(batch) != 2:
        return batch
    return (*batch, np.ones(nested_arrays.row_count(batch), dtype="float32"))


def _one_batch(arguments: FitArguments, facts: DataFacts) -> Any:
    x = arguments.get("x")
    if facts.kind == "arrays":
        weight = arguments.get("sample_weight")
        if weight is None and arguments.get("class_weight") is not None:
            weight = np.ones(training_samples(arguments), dtype="float32")
        return keras.utils.pack_x_y_sample_weight(x, arguments.get("y"), weight)
    if facts.kind == "tf.data":
        return first_batch(x)
    if facts.kind == "PyDataset":
        return next(iter(lookahead.first_middle_last(x, 1)))
    if facts.kind == "DataLoader":
        return nested_arrays.as_tuple(torch_dataloader.first_batch(x))
    return lookahead.buffered_batch(x)


def placeholder_batch(arguments: FitArguments, facts: DataFacts) -> Any:
    """Return a batch of one row with the right shapes and dtypes, without consuming data; None if that is unknown."""
    if facts.kind != "tf.data":
        return sample_batch(arguments, facts, 1)
    spec = arguments["x"].element_spec

    def zeros(leaf: Any) -> Any:
        return np.zeros([size or 1 for size in leaf.shape], leaf.dtype.as_numpy_dtype)

    return _weighted(nested_arrays.map_leaves(zeros, spec), arguments)


def _with_rows(batch: Any, rows: int) -> Any:
    def take(leaf: Any) -> Any:
        array = np.asarray(leaf[: min(rows, len(leaf))])
        if len(array) < rows:
            array = np.resize(array, (rows, *array.shape[1:]))
        return array

    return nested_arrays.map_leaves(take, batch)
