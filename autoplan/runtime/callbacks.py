"""Classifies Keras callbacks (which write files, which run in trials), and adapts those that count micro-steps."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import keras

from autoplan.plan.callback_calls import BatchCallback, calls_per_script_call, samples_per_call
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.user_code import batch_hooks
from autoplan.runtime.user_code.script_calls import called_as_in_the_script, join_calls, release
from cost_models.config import TrainConfig

_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore", "RemoteMonitor", "SwapEMAWeights")
"""Keras's own callbacks that write files or send data, with their subclasses."""
_SENDERS = ("wandb", "mlflow", "neptune", "comet_ml", "clearml", "aim", "swanlab")
"""Packages whose callbacks send data from threads or processes of their own, where a trial cannot see it."""
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_MICRO_STEP_COUNTS = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "OrbaxCheckpoint": "save_freq"}
_CALL_COUNTS = {"TensorBoard": "update_freq"}
"""Attributes of callbacks of Keras that count micro-steps, or calls of their batch hooks."""


def as_list(callbacks: Any) -> list[Any]:
    """Return the callbacks argument of `fit` as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def monitoring(callbacks: Any, metrics: Collection[str]) -> list[str]:
    """Return the class names of the callbacks that act on the value of one of these metrics."""
    return [type(one).__name__ for one in as_list(callbacks) if getattr(one, "monitor", None) in metrics]


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


def trial_callbacks(
    arguments: FitArguments,
    left_out: Collection[int] = (),
    *,
    change: tuple[TrainConfig, TrainConfig] | None = None,
    micro_steps: int | None = None,
) -> list[Any]:
    """Return the callbacks of a fit that run in a trial.

    left_out     positions of callbacks that were seen to write
    change       configurations of the script and of the trial; batch hooks are then called as in the script, where
                 `autoplan train` does so
    micro_steps  micro-steps per epoch in the script; None: not known

    Their `params` contain the script's own number of epochs, because a trial's fit has no last epoch and a schedule
    over the whole training needs the number.
    """
    every = enumerate(as_list(arguments.get("callbacks")))
    selected = [callback for position, callback in every if position not in left_out and runs_in_trials(callback)]
    release(selected)
    for callback in selected:
        callback.set_params = functools.partial(_set_params, callback, arguments.get("epochs", 1))
    group = None if change is None else calls_per_script_call(*change)
    if change is not None and group is not None:
        join_calls(selected, group, executions=change[0].steps_per_execution, micro_steps=micro_steps)
    return selected


def _set_params(callback: Any, epochs: int, params: dict[str, object]) -> None:
    type(callback).set_params(callback, {**params, "epochs": epochs})


def counts(callback: Any) -> tuple[str, int] | None:
    """Return the attribute in which a callback of Keras has a count of micro-steps or calls, and the count."""
    known = _MICRO_STEP_COUNTS | _CALL_COUNTS
    attribute = next((known[base.__name__] for base in type(callback).__mro__ if base.__name__ in known), None)
    count = getattr(callback, attribute, None) if attribute else None
    return (attribute, count) if attribute is not None and isinstance(count, int) else None


def batch_callbacks(callbacks: Any) -> list[BatchCallback]:
    """Return the callbacks whose batch hooks are the user's own, or count, with what they change in a training."""
    found = []
    for one in as_list(callbacks):
        own, count = batch_hooks.has_own_batch_hooks(one), counts(one)
        if own or count is not None:
            counted = "" if count is None else f"{count[0]}={count[1]}"
            changes = batch_hooks.changed_by(one)
            found.append(BatchCallback(name=type(one).__name__, own=own, count=counted, changes=changes))
    return found


@contextmanager
def adapted(
    callbacks: Any, script: TrainConfig, wanted: TrainConfig, *, micro_steps: int | None = None
) -> Iterator[list[str]]:
    """Within this context, batch hooks are called as often as in the script, where that is possible.

    Elsewhere, counts of Keras's own callbacks (save_freq, update_freq) are converted, so that they refer to the same
    samples. Yields a line for every such change.

    script, wanted  the configuration of this fit in the script, and the one that it runs under
    micro_steps     micro-steps per epoch in the script; None: not known
    """
    listed = list({id(one): one for one in as_list(callbacks)}.values())
    group = calls_per_script_call(script, wanted)
    before = {} if group else {index: found for index, one in enumerate(listed) if (found := counts(one))}
    lines = []
    for index, (attribute, count) in before.items():
        name = type(listed[index]).__name__
        converted = max(1, round(count * _ratio(attribute, script, wanted)))
        if converted != count:
            setattr(listed[index], attribute, converted)
            lines.append(f"{name}.{attribute}: {count} -> {converted} micro-steps")
    try:
        with called_as_in_the_script(
            listed, group or 1, executions=script.steps_per_execution, micro_steps=micro_steps
        ):
            yield lines
    finally:
        for index, (attribute, count) in before.items():
            setattr(listed[index], attribute, count)


def _ratio(attribute: str, script: TrainConfig, wanted: TrainConfig) -> float:
    """Return how many of the counted things the plan has for one in the script."""
    if attribute in _CALL_COUNTS.values():
        return samples_per_call(script) / samples_per_call(wanted)
    return script.batch.global_size / wanted.batch.global_size
