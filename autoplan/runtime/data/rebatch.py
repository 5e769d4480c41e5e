"""Global, local and effective batch: the arguments of a `fit` under another batch, order and samples kept.

The last, partial effective batch of an epoch needs care as soon as an update takes several micro-steps: left alone, its
rows would wait in the accumulator for the next epoch and every later update would be another one than the script's.
Three ways, the first that is exact is taken (`remainder_mode`):

split  the r rows divide over the micro-steps of an update: as many smaller micro-batches
pad    micro-batches of full size, real rows weighted (effective batch / r), the others zero: exact where nothing looks
       at rows but through their weights
drop   the r mod accumulation rows that do not divide are left out of this epoch; the rest is split

Arrays are shuffled and cut here. Data that come in batches keep their order: `runtime/stream.py` regroups PyDatasets
and generators, `runtime/loader_batches.py` DataLoaders, and `runtime/tensors.py` cuts within a tf.data pipeline.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn

from autoplan.runtime.data import data_facts, dataloader_batches, regroup, sample, tf_dataset
from autoplan.runtime.data.data_facts import DataFacts
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
        changed |= _rebatched_dataset(arguments, script, wanted, weights_only=weights_only)
    elif facts.kind in ("PyDataset", "generator", "DataLoader"):
        changed |= _regrouped(arguments, facts, script, wanted, weights_only=weights_only)
    elif facts.kind == "arrays":
        changed |= _rebatched_arrays(arguments, wanted, weights_only=weights_only)
    if facts.kind == "arrays" and arguments.get("validation_steps") and not arguments.get("validation_batch_size"):
        changed["validation_batch_size"] = script.global_size  # the batch that the script counts those steps in
    if facts.rebatchable and arguments.get("steps_per_epoch") is not None:
        changed["steps_per_epoch"] = arguments["steps_per_epoch"] * script.global_size // wanted.global_size
    return changed


def _regrouped(
    arguments: dict[str, Any], facts: DataFacts, script: Batch, wanted: Batch, *, weights_only: bool
) -> dict[str, Any]:
    shuffle = bool(arguments.get("shuffle", True))
    regrouping = regroup.Regrouping(script, wanted)
    regrouping.padded = (
        weights_only
        and _has_targets(data_facts.sample_batch(arguments, facts, 1))
        and _may_not_divide(facts, regrouping)
    )
    if facts.kind == "DataLoader":
        return {"x": dataloader_batches.rebatched(arguments["x"], regrouping)}
    class_weight = arguments.get("class_weight")
    x = regroup.regrouped(
        arguments["x"], regrouping, last_rows=facts.last_rows, shuffle=shuffle, class_weight=class_weight
    )
    return {"x": x, "class_weight": None}


def _may_not_divide(facts: DataFacts, regrouping: regroup.Regrouping) -> bool:
    """Whether an update may have rows that do not divide over its micro-steps; of a generator that is never known."""
    batches = facts.batches
    if batches is None or facts.last_rows is None:
        return regrouping.wanted.accumulation > 1
    partial = regrouping.partial_updates(batches, facts.last_rows)
    return any(size % regrouping.wanted.accumulation for sizes in partial for size in sizes)


def _has_targets(batch: Any) -> bool:
    """Whether weights reach the loss: they weigh targets, and without those a loss is the model's own."""
    return keras.utils.unpack_x_y_sample_weight(batch)[1] is not None


def _rebatched_arrays(arguments: dict[str, Any], wanted: Batch, *, weights_only: bool) -> dict[str, Any]:
    mode = None
    if arguments.get("steps_per_epoch") is None:
        weighted = weights_only and arguments.get("y") is not None
        mode = remainder_mode(data_facts.training_samples(arguments), wanted, weights_only=weighted)
    if mode is None:
        return {"batch_size": wanted.global_size}
    training, validation = _split_validation(arguments)
    if arguments.get("class_weight") is not None:
        # Keras takes class weights for a PyDataset only where it brings no sample weights, and padding needs those.
        weights = data_adapter_utils.class_weight_to_sample_weights(training[1], arguments["class_weight"])
        training = (*training[:2], np.asarray(weights, dtype="float32"))
    validation_batch = arguments.get("validation_batch_size") or wanted.global_size
    return {
        "x": _cut_arrays(training, wanted, mode=mode, shuffle=arguments.get("shuffle", True)),
        "y": None,
        "sample_weight": None,
        "class_weight": None,
        "batch_size": None,
        "shuffle": False,  # x shuffles samples itself, as `fit` would; this one would shuffle batches
        "validation_split": 0.0,
        "validation_data": validation,
        "validation_batch_size": validation_batch if validation is not None else None,
    }


def _cut_arrays(training: tuple[Any, Any, Any], wanted: Batch, *, mode: str, shuffle: Any) -> Any:
    """The arrays in micro-batches, shuffled as `fit` on this backend shuffles them."""
    if keras.backend.backend() != "tensorflow":
        return EffectiveBatches(training, wanted, mode=mode, shuffle=shuffle)
    micro_steps = micro_steps_an_epoch(sample.rows(training[0]), wanted, mode)
    return tf_dataset.micro_batches(training, wanted, micro_steps, padded=mode == "pad", shuffle=shuffle)


def micro_steps_an_epoch(samples: int, wanted: Batch, mode: str) -> int:
    """Those of the full effective batches, and of what is left over in this mode."""
    full, rest = divmod(samples, wanted.effective)
    has_rest = rest > 0 and (mode == "pad" or rest >= wanted.accumulation)
    return (full + has_rest) * wanted.accumulation


def _split_validation(arguments: dict[str, Any]) -> tuple[Any, Any]:
    training = (arguments["x"], arguments.get("y"), arguments.get("sample_weight"))
    given = arguments.get("validation_data")
    if given is not None or not arguments.get("validation_split"):
        return training, given
    kept = data_facts.training_samples(arguments)
    first = data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, slice(None, kept)), training)
    last = data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, slice(kept, None)), training)
    return first, last


class EffectiveBatches(keras.utils.PyDataset):
    """Micro-batches of arrays whose last effective batch of an epoch is partial.

    Every update sees the rows that the script's own update would see, shuffled as `fit` shuffles on this backend: one
    permutation an epoch (`_drawn_order`). Class weights have become sample weights by then. On TensorFlow
    `tensors.micro_batches` stands for it, as fast as Keras's own way there.

    shuffle   as `fit` takes it: "batch" shuffles the rows within each batch, which is no other update
    """

    def __init__(self, training: tuple[Any, Any, Any], wanted: Batch, *, mode: str, shuffle: bool | str) -> None:
        super().__init__()
        self._training, self._wanted, self._mode = training, wanted, mode
        self._shuffle = bool(shuffle) and shuffle != "batch"
        self._samples = sample.rows(training[0])
        self._order = np.arange(self._samples)
        full, rest = divmod(self._samples, wanted.effective)
        self._full_micro_steps = full * wanted.accumulation
        self._rest_micro_rows = rest // wanted.accumulation
        self._micro_steps = micro_steps_an_epoch(self._samples, wanted, mode)

    def __len__(self) -> int:
        return self._micro_steps

    def __getitem__(self, index: int) -> Any:
        if index == 0 and self._shuffle:
            self._order = _drawn_order(self._samples)
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
        x, y, weight = data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, rows), self._training)
        if self._mode != "pad":
            return _packed(x, y, weight)
        if weight is None:
            weight = np.ones(len(rows), dtype="float32")
        if last:
            share = np.float32(self._wanted.effective / (self._samples % self._wanted.effective))
            weight = data_facts.map_leaves(lambda leaf: leaf * share, weight)
        return data_facts.map_leaves(lambda leaf: regroup.filled(leaf, padded), (x, y, weight))


def _drawn_order(samples: int) -> Any:
    """An epoch's order as `fit` draws it: from PyTorch's own sampler there, from NumPy's global generator on JAX."""
    if keras.backend.backend() == "torch":
        from torch.utils.data import RandomSampler

        return np.fromiter(RandomSampler(range(samples)), dtype="int64", count=samples)
    return np.random.permutation(samples)  # noqa: NPY002 -- the generator that Keras draws from


def _packed(x: Any, y: Any, weight: Any) -> Any:
    return (x, y, weight) if weight is not None else ((x, y) if y is not None else (x,))


def _rebatched_dataset(
    arguments: dict[str, Any], script: Batch, wanted: Batch, *, weights_only: bool
) -> dict[str, Any]:
    """A tf.data pipeline in micro-batches: the rows of each update, cut into its micro-steps.

    Where the script's update is one batch, it stays that batch, wherever in the pipeline a partial one comes.
    """
    import tensorflow as tf

    dataset, class_weight = arguments["x"], arguments.get("class_weight")
    if wanted.accumulation == 1:
        return {"x": dataset.rebatch(wanted.effective).prefetch(tf.data.AUTOTUNE)}
    last_rows = _last_rows(dataset, wanted)
    may_not_divide = last_rows == 0 or last_rows % wanted.accumulation != 0
    padded = weights_only and may_not_divide and _has_targets(dataset.element_spec)
    if padded and class_weight is not None:
        dataset, class_weight = dataset.map(make_class_weight_map_fn(class_weight)), None
    as_it_comes = script.accumulation == 1 and script.effective == wanted.effective
    updates = dataset if as_it_comes else dataset.rebatch(wanted.effective)
    cut_up = updates.flat_map(tf_dataset.cutter(updates.element_spec, wanted, padded=padded))
    cardinality = int(updates.cardinality())
    if cardinality >= 0 and (padded or last_rows >= wanted.accumulation):
        # Keras asks for the length; flat_map forgets it. An update that is too small to be cut has no micro-steps.
        cut_up = cut_up.apply(tf.data.experimental.assert_cardinality(cardinality * wanted.accumulation))
    return {"x": cut_up.prefetch(tf.data.AUTOTUNE), "class_weight": class_weight}


def _last_rows(dataset: Any, wanted: Batch) -> int:
    """Rows of the last update where that is known without reading: full ones only; else 0."""
    spec = keras.tree.flatten(dataset.element_spec)[0].shape
    batch, batches = spec[0] if spec.rank else None, int(dataset.cardinality())
    if batch is None or batches < 0:
        return 0  # a batch of unknown size may be partial
    return int(batch * batches % wanted.effective) or wanted.effective
