"""Classifies Keras callbacks (which write files, which run in trials), and adapts those that count micro-steps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from types import ModuleType
from typing import Any

import keras

from autoplan.runtime.data.fit_arguments import FitArguments
from cost_models.config import Batch

_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore", "RemoteMonitor", "SwapEMAWeights")
"""Keras's own callbacks that write files or send data, with their subclasses."""
_SENDERS = ("wandb", "mlflow", "neptune", "comet_ml", "clearml", "aim", "swanlab")
"""Packages whose callbacks send data from threads or processes of their own, where a trial cannot see it."""
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_OWN_COUNTS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The count that the script itself has set, for a callback that is used in several fits."""
_COUNTS = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "TensorBoard": "update_freq"}


def as_list(callbacks: Any) -> list[Any]:
    """Return the callbacks argument of `fit` as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def known_writer(callback: Any) -> bool:
    """Return whether this callback is known to write files or to send data.

    These are classes of Keras and of tracking services, and callbacks whose own methods use a tracking service. Trials
    watch what all other callbacks do (`autoplan.worker.files`), whatever their names are.
    """
    for base in type(callback).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _SENDERS or (package == "keras" and base.__name__ in _WRITERS):
            return True
        if package != "keras" and any(_uses_sender(method) for method in vars(base).values()):
            return True
    return any(_uses_sender(method) for method in vars(callback).values())


def _uses_sender(function: Any) -> bool:
    """Return whether a function uses the module of a tracking service."""
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", None)
    if code is None or names is None:
        return False
    used = (names.get(name) for name in code.co_names)
    return any(isinstance(one, ModuleType) and one.__name__.partition(".")[0] in _SENDERS for one in used)


def saved_part(callback: Any) -> str | None:
    """Return what a callback saves of a model: "checkpoint", "weights" or None."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return None
    return "weights" if callback.save_weights_only else "checkpoint"


def runs_in_trials(callback: Any) -> bool:
    """Return whether a trial runs this callback: it has a hook for micro-steps and is not known to write.

    A callback that runs once per epoch (a schedule, early stopping) does not affect the time of a micro-step, and a
    trial has no real epochs.
    """
    hooks = any(
        hook in vars(callback) or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in _BATCH_HOOKS
    )
    return hooks and not known_writer(callback)


def trial_callbacks(arguments: FitArguments, left_out: Collection[int] = ()) -> list[Any]:
    """Return the callbacks of a fit that run in a trial.

    left_out  positions of callbacks that were seen to write

    Their `params` contain the script's own number of epochs, because a trial's fit has no last epoch and a schedule
    over the whole training needs the number.
    """
    every = enumerate(as_list(arguments.get("callbacks")))
    selected = [callback for position, callback in every if position not in left_out and runs_in_trials(callback)]
    for callback in selected:
        callback.set_params = functools.partial(_set_params, callback, arguments.get("epochs", 1))
    return selected


def _set_params(callback: Any, epochs: int, params: dict[str, object]) -> None:
    type(callback).set_params(callback, {**params, "epochs": epochs})


def adapt_callbacks(callbacks: Any, script: Batch, wanted: Batch) -> list[str]:
    """Convert counts of micro-steps (save_freq, update_freq) so that they refer to the same samples.

    Returns a line for every change, and for every callback whose own count may need a change.
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
        elif type(callback).__module__.partition(".")[0] != "keras" and runs_in_trials(callback):
            ratio = script.global_size / wanted.global_size
            changed.append(
                f"{name} runs at every micro-step, and there are {ratio:g} times as many; check any count of its own"
            )
    return changed
