"""Converts the arguments of a `fit` to another batch size, with the same samples in the same order.

If an update takes several micro-steps, the partial last effective batch of an epoch needs special treatment: otherwise
its r rows would wait in the gradient accumulators for the next epoch, and every later update would differ from the
script's. `remainder_mode` selects the first exact mode of these:

split  the r rows divide over the micro-steps of an update, so they form equal smaller micro-batches
pad    micro-batches have full size; the real rows get the weight (effective batch / r), padding rows the weight zero.
       This is exact if rows of weight zero do not change an update (`fit.padding_is_exact`)
drop   the r mod accumulation rows that do not divide are dropped in this epoch, and the others are split

Arrays are shuffled and split here. `regroup` handles PyDatasets and generators, `torch_dataloader` DataLoaders, and
`tf_dataset` splits updates within a tf.data pipeline.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn

from autoplan.runtime.data import (
    data_facts,
    nested_arrays,
    regroup,
    tf_dataset,
    torch_dataloader,
)
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from cost_models.config import Batch


def remainder_mode(samples: int, wanted: Batch, *, can_pad: bool) -> str | None:
    """Return how the partial last effective batch of an epoch is run; None if no special treatment is needed.

    can_pad  whether rows of weight zero do not change an update
    """
    rest = samples % wanted.effective
    if wanted.accumulation == 1 or rest == 0:
        return None
    if rest % wanted.accumulation == 0:
        return "split"
    return "pad" if can_pad else "drop"


def dropped_samples(samples: int, wanted: Batch, mode: str | None) -> int:
    """Return the samples per epoch that the mode `drop` drops."""
    return samples % wanted.effective % wanted.accumulation if mode == "drop" else 0


def rebatched(
    arguments: FitArguments, facts: DataFacts, script: Batch, wanted: Batch, *, can_pad: bool
) -> FitArguments:
    """Return the arguments of a fit under the wanted batch; unchanged arguments if the two batches are equal."""
    if script == wanted:
        return arguments
    changed = arguments.copy()
    if facts.kind == "tf.data":
        changed |= _rebatched_dataset(arguments, script, wanted, can_pad=can_pad)
    elif facts.kind in ("PyDataset", "generator", "DataLoader"):
        changed |= _regrouped(arguments, facts, script, wanted, can_pad=can_pad)
    elif facts.kind == "arrays":
        changed |= _rebatched_arrays(arguments, facts, wanted, can_pad=can_pad)
    if facts.kind == "arrays" and arguments.get("validation_steps") and not arguments.get("validation_batch_size"):
        changed["validation_batch_size"] = script.global_size  # the script counts steps of this size
    steps = arguments.get("steps_per_epoch")
    if facts.rebatchable and steps is not None:
        changed["steps_per_epoch"] = steps * script.global_size // wanted.global_size
    return changed


def _regrouped(
    arguments: FitArguments, facts: DataFacts, script: Batch, wanted: Batch, *, can_pad: bool
) -> FitArguments:
    shuffle = bool(arguments.get("shuffle", True))
    regrouping = regroup.Regrouping(script, wanted)
    regrouping.padded = (
        can_pad and _has_targets(data_facts.sample_batch(arguments, facts, 1)) and _may_not_divide(facts, regrouping)
    )
    if facts.kind == "DataLoader":
        return {"x": torch_dataloader.rebatched(arguments["x"], regrouping)}
    class_weight = arguments.get("class_weight")
    x = regroup.regroup_batches(
        arguments["x"], regrouping, last_rows=facts.last_rows, shuffle=shuffle, class_weight=class_weight
    )
    return {"x": x, "class_weight": None}


def _may_not_divide(facts: DataFacts, regrouping: regroup.Regrouping) -> bool:
    """Return whether an update may have rows that do not divide over its micro-steps; unknown for a generator."""
    batches = facts.batches
    if batches is None or facts.last_rows is None:
        return regrouping.wanted.accumulation > 1
    partial = regrouping.partial_updates(batches, facts.last_rows)
    return any(size % regrouping.wanted.accumulation for sizes in partial for size in sizes)


def _has_targets(batch: Any) -> bool:
    """Return whether the batch has targets; without them the loss is the model's own and ignores sample weights."""
    return keras.utils.unpack_x_y_sample_weight(batch)[1] is not None


def reaches_end(arguments: FitArguments, facts: DataFacts) -> bool:
    """Return whether a fit of arrays reads all rows; with `steps_per_epoch` it may end before. It goes on from where
    the epoch before has ended."""
    epochs = arguments.get("epochs", 1) - arguments.get("initial_epoch", 0)
    per_epoch = facts.micro_steps if facts.explicit_steps else None
    return per_epoch is None or facts.samples is None or per_epoch * epochs * facts.batch >= facts.samples


def _rebatched_arrays(arguments: FitArguments, facts: DataFacts, wanted: Batch, *, can_pad: bool) -> FitArguments:
    mode = None
    if reaches_end(arguments, facts):
        weighted = can_pad and arguments.get("y") is not None
        mode = remainder_mode(data_facts.training_samples(arguments), wanted, can_pad=weighted)
    if mode is None:
        return {"batch_size": wanted.global_size}
    training, validation = _split_validation(arguments)
    if arguments.get("class_weight") is not None:
        # Keras accepts class weights for a PyDataset only without sample weights, and padding needs sample weights.
        weights = data_adapter_utils.class_weight_to_sample_weights(training[1], arguments["class_weight"])
        training = (*training[:2], np.asarray(weights, dtype="float32"))
    validation_batch = arguments.get("validation_batch_size") or wanted.global_size
    return {
        "x": _split_arrays(training, wanted, mode=mode, shuffle=arguments.get("shuffle", True)),
        "y": None,
        "sample_weight": None,
        "class_weight": None,
        "batch_size": None,
        "shuffle": False,  # x shuffles samples itself, as `fit` would; True would shuffle batches
        "validation_split": 0.0,
        "validation_data": validation,
        "validation_batch_size": validation_batch if validation is not None else None,
    }


def _split_arrays(training: tuple[Any, Any, Any], wanted: Batch, *, mode: str, shuffle: Any) -> Any:
    """Return the arrays in micro-batches, shuffled as `fit` on this backend shuffles them."""
    if keras.backend.backend() != "tensorflow":
        return EffectiveBatches(training, wanted, mode=mode, shuffle=shuffle)
    micro_steps = micro_steps_per_epoch(nested_arrays.row_count(training[0]), wanted, mode)
    return tf_dataset.micro_batches(training, wanted, micro_steps, padded=mode == "pad", shuffle=shuffle)


def micro_steps_per_epoch(samples: int, wanted: Batch, mode: str) -> int:
    """Return the micro-steps of the full effective batches, and of the remainder in this mode."""
    full, rest = divmod(samples, wanted.effective)
    has_rest = rest > 0 and (mode == "pad" or rest >= wanted.accumulation)
    return (full + has_rest) * wanted.accumulation


def _split_validation(arguments: FitArguments) -> tuple[Any, Any]:
    training = (arguments["x"], arguments.get("y"), arguments.get("sample_weight"))
    given = arguments.get("validation_data")
    if given is not None or not arguments.get("validation_split"):
        return training, given
    count = data_facts.training_samples(arguments)
    first = nested_arrays.map_leaves(lambda leaf: nested_arrays.take_rows(leaf, slice(None, count)), training)
    last = nested_arrays.map_leaves(lambda leaf: nested_arrays.take_rows(leaf, slice(count, None)), training)
    return first, last


class EffectiveBatches(keras.utils.PyDataset):
    """Micro-batches of arrays whose last effective batch of an epoch is partial.

    Every update has the rows of the script's own update, shuffled as `fit` shuffles on this backend: one permutation
    per epoch (`_permutation`). Class weights must have been converted to sample weights. On TensorFlow,
    `tf_dataset.micro_batches` is used instead, which is as fast as Keras's own pipeline.

    shuffle   as in `fit`: "batch" only shuffles the rows within each batch, which does not change the update
    """

    def __init__(self, training: tuple[Any, Any, Any], wanted: Batch, *, mode: str, shuffle: bool | str) -> None:
        super().__init__()
        self._training, self._wanted, self._mode = training, wanted, mode
        self._shuffle = bool(shuffle) and shuffle != "batch"
        self._samples = nested_arrays.row_count(training[0])
        self._order = np.arange(self._samples)
        full, rest = divmod(self._samples, wanted.effective)
        self._full_micro_steps = full * wanted.accumulation
        self._rest_micro_rows = rest // wanted.accumulation
        self._micro_steps = micro_steps_per_epoch(self._samples, wanted, mode)

    def __len__(self) -> int:
        return self._micro_steps

    def __getitem__(self, index: int) -> Any:
        if index == 0 and self._shuffle:
            self._order = _permutation(self._samples)
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
        x, y, weight = nested_arrays.map_leaves(lambda leaf: nested_arrays.take_rows(leaf, rows), self._training)
        if self._mode != "pad":
            return _packed(x, y, weight)
        if weight is None:
            weight = np.ones(len(rows), dtype="float32")
        if last:
            share = np.float32(self._wanted.effective / (self._samples % self._wanted.effective))
            weight = nested_arrays.map_leaves(lambda leaf: leaf * share, weight)
        return nested_arrays.map_leaves(lambda leaf: nested_arrays.pad_rows(leaf, padded), (x, y, weight))


def _permutation(samples: int) -> Any:
    """Draw the order of an epoch as `fit` does: with PyTorch's sampler on PyTorch, with NumPy's generator on JAX."""
    if keras.backend.backend() == "torch":
        from torch.utils.data import RandomSampler

        return np.fromiter(RandomSampler(range(samples)), dtype="int64", count=samples)
    return np.random.permutation(samples)  # noqa: NPY002 -- Keras draws from it


def _packed(x: Any, y: Any, weight: Any) -> Any:
    return (x, y, weight) if weight is not None else ((x, y) if y is not None else (x,))


def _rebatched_dataset(arguments: FitArguments, script: Batch, wanted: Batch, *, can_pad: bool) -> FitArguments:
    """Return a tf.data pipeline of micro-batches: the rows of each update, split into its micro-steps.

    If the script's update is one batch, that batch stays together, even if a partial batch comes before the last.
    """
    import tensorflow as tf

    dataset, class_weight = arguments["x"], arguments.get("class_weight")
    if wanted.accumulation == 1:
        return {"x": dataset.rebatch(wanted.effective).prefetch(tf.data.AUTOTUNE)}
    last_rows = _last_rows(dataset, wanted)
    may_not_divide = last_rows == 0 or last_rows % wanted.accumulation != 0
    padded = can_pad and may_not_divide and _has_targets(dataset.element_spec)
    if padded and class_weight is not None:
        dataset, class_weight = dataset.map(make_class_weight_map_fn(class_weight)), None
    batch_is_update = script.accumulation == 1 and script.effective == wanted.effective
    updates = dataset if batch_is_update else dataset.rebatch(wanted.effective)
    micro_batches = updates.flat_map(tf_dataset.micro_step_splitter(updates.element_spec, wanted, padded=padded))
    cardinality = int(updates.cardinality())
    if cardinality >= 0 and (padded or last_rows >= wanted.accumulation):
        # Keras needs the length, which flat_map loses. An update that is too small to be split has no micro-steps.
        micro_batches = micro_batches.apply(tf.data.experimental.assert_cardinality(cardinality * wanted.accumulation))
    return {"x": micro_batches.prefetch(tf.data.AUTOTUNE), "class_weight": class_weight}


def _last_rows(dataset: Any, wanted: Batch) -> int:
    """Return the rows of the last update if all batches are full; 0 if it is not known without reading the data."""
    spec = keras.tree.flatten(dataset.element_spec)[0].shape
    batch, batches = spec[0] if spec.rank else None, int(dataset.cardinality())
    if batch is None or batches < 0:
        return 0  # a batch of unknown size may be partial
    return int(batch * batches % wanted.effective) or wanted.effective
