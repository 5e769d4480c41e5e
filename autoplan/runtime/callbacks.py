"""A script's own callbacks: which ones write, which ones count micro-steps."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import keras

from cost_models.config import Batch

_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore", "RemoteMonitor", "SwapEMAWeights")
_WRITER_WORDS = (
    "wandb",
    "mlflow",
    "neptune",
    "comet",
    "clearml",
    "checkpoint",
    "tensorboard",
    "logger",
    "monitor",
    "save",
)
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_OWN_COUNTS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""What the script itself set, for a callback that serves several fits."""
_COUNTS = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "TensorBoard": "update_freq"}


def as_list(callbacks: Any) -> list[Any]:
    """The callbacks argument of `fit` as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def writes(callback: Any) -> bool:
    """Whether this callback leaves something behind: by class, or by what its name or package says."""
    if any(base.__name__ in _WRITERS for base in type(callback).__mro__):
        return True
    name = f"{type(callback).__module__}.{type(callback).__name__}".lower()
    return any(word in name for word in _WRITER_WORDS)


def saved_by(callback: Any) -> str | None:
    """What of a model it saves: a `checkpoint` of the whole, its `weights`, or nothing."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return None
    return "weights" if callback.save_weights_only else "checkpoint"


def timed_in_trials(callback: Any) -> bool:
    """Whether a trial keeps it: it works at every micro-step and writes nothing.

    What works once an epoch (schedules by epoch, early stopping) has no share in a micro-step, and would act on epochs
    that a trial only pretends to run.
    """
    hooks = any(
        hook in vars(callback) or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in _BATCH_HOOKS
    )
    return hooks and not writes(callback)


def kept_in_trials(arguments: dict[str, Any]) -> list[Any]:
    """A fit's callbacks that a trial keeps.

    They are told of the script's own epochs: a trial's fit has no last one, and what reckons with it (a schedule over
    the whole training) shall not.
    """
    kept = [one for one in as_list(arguments.get("callbacks")) if timed_in_trials(one)]
    for one in kept:
        one.set_params = functools.partial(_set_params, one, arguments.get("epochs", 1))
    return kept


def _set_params(callback: Any, epochs: int, params: dict[str, Any]) -> None:
    type(callback).set_params(callback, {**params, "epochs": epochs})


def retime_callbacks(callbacks: Any, script: Batch, wanted: Batch) -> list[str]:
    """Re-express counts of micro-steps (save_freq, update_freq) so that they fall on the same samples.

    Returns a line for every change and for every count that cannot be kept exactly.
    """
    changed = []
    for callback in as_list(callbacks):
        name = type(callback).__name__
        attribute = next((_COUNTS[base.__name__] for base in type(callback).__mro__ if base.__name__ in _COUNTS), None)
        count = getattr(callback, attribute, None) if attribute else None
        if attribute is not None and isinstance(count, int):
            own = _OWN_COUNTS.setdefault(callback, count)
            wanted_count = max(1, round(own * script.global_size / wanted.global_size))
            if wanted_count != count:
                setattr(callback, attribute, wanted_count)
                changed.append(f"{name}.{attribute}: {own} -> {wanted_count} micro-steps")
        elif type(callback).__module__.partition(".")[0] != "keras" and timed_in_trials(callback):
            ratio = script.global_size / wanted.global_size
            changed.append(
                f"{name} works at every micro-step, of which there are {ratio:g} times as many; a count is its own"
            )
    return changed
