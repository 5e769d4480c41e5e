"""Calls the batch hooks of callbacks as often as in the script, while Keras runs more micro-steps than the script."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from autoplan.runtime.user_code.batch_hooks import has_batch_hooks

_GROUPED: weakref.WeakKeyDictionary[Any, _Grouped] = weakref.WeakKeyDictionary()
_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end", "set_params")


@contextmanager
def called_as_in_the_script(
    callbacks: Iterable[Any], group: int, *, executions: int, micro_steps: int | None
) -> Iterator[None]:
    """Within this context, a fit calls the batch hooks of these callbacks as `join_calls` describes."""
    listed = list(callbacks)
    join_calls(listed, group, executions=executions, micro_steps=micro_steps)
    try:
        yield
    finally:
        release(listed)


def join_calls(callbacks: Iterable[Any], group: int, *, executions: int, micro_steps: int | None) -> None:
    """Let fits call the batch hooks of these callbacks once per `group` calls of Keras, until `release`.

    The hooks get the index that they have in the script, and the logs of the last micro-step of a group, which are of
    the same samples as in the script. `params["steps"]` is the number of micro-steps of the script.

    executions   steps_per_execution of the script
    micro_steps  micro-steps per epoch of the script; None: not known
    """
    listed = list(callbacks)
    release(listed)
    for one in listed:
        if group > 1 and isinstance(one, keras.callbacks.Callback) and one not in _GROUPED:
            _GROUPED[one] = _Grouped(one, group, executions, micro_steps)


def release(callbacks: Iterable[Any]) -> None:
    """Give callbacks their own hooks back."""
    for one in callbacks:
        if isinstance(one, keras.callbacks.Callback) and one in _GROUPED:
            _GROUPED.pop(one).release()


class _Grouped:
    """Replaces the hooks of one callback, on this object alone, until `release`."""

    def __init__(self, callback: Any, group: int, executions: int, micro_steps: int | None) -> None:
        self._callback, self._group, self._executions, self._micro_steps = callback, group, executions, micro_steps
        self._begun = self._ended = 0
        self._logs: Any = None
        self._before = {name: vars(callback)[name] for name in _HOOKS if name in vars(callback)}
        self._original = {name: getattr(callback, name) for name in _HOOKS}
        callback.set_params = self._set_params
        if has_batch_hooks(callback):
            callback.on_train_batch_begin, callback.on_train_batch_end = self._begin, self._end
            callback.on_epoch_begin, callback.on_epoch_end = self._begin_epoch, self._end_epoch

    def release(self) -> None:
        """Give the callback its own hooks back."""
        for name in _HOOKS:
            vars(self._callback).pop(name, None)
        vars(self._callback).update(self._before)

    def _set_params(self, params: dict[str, Any]) -> None:
        steps = params.get("steps")
        if self._micro_steps is not None:
            steps = self._micro_steps
        elif steps is not None:
            steps = -(-steps // self._group)
        self._original["set_params"]({**params, "steps": steps})

    def _begin(self, batch: int, logs: Any = None) -> None:
        call, inside = divmod(self._begun, self._group)
        self._begun += 1
        if not inside:
            self._original["on_train_batch_begin"](call * self._executions, logs)

    def _end(self, batch: int, logs: Any = None) -> None:
        self._ended += 1
        self._logs = logs
        if self._ended % self._group == 0:
            self._pass_on()

    def _pass_on(self) -> None:
        calls = -(-self._ended // self._group)
        self._original["on_train_batch_end"](calls * self._executions - 1, self._logs)

    def _begin_epoch(self, epoch: int, logs: Any = None) -> None:
        self._begun = self._ended = 0
        self._original["on_epoch_begin"](epoch, logs)

    def _end_epoch(self, epoch: int, logs: Any = None) -> None:
        if self._ended % self._group:  # the epoch has ended, or was stopped, within a micro-step of the script
            self._pass_on()
        self._original["on_epoch_end"](epoch, logs)
