"""Times the micro-steps of a fit in groups with real synchronisation, and stops it once enough is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from autoplan.runtime.backends import Backend, CompileWatch

_WARM_UP_SPREAD = 0.10
_WARM_UP_GROUPS = 4


class NotFinite(Exception):
    """The training loss is NaN or infinite."""


class GroupTimer(keras.callbacks.Callback):
    """Times a fit from its first micro-step on, around the model's training function.

    Not in `on_train_batch_end`: Keras runs its batch-level callbacks beside the training as long as none of the
    script's own needs each result, and one more such callback would make it wait after every micro-step.

    First call: compilation and first execution together. Then groups of calls of at least `group_seconds` each, every
    group ended by waiting for the device. Groups are warm-up until two in a row agree within 10% (4 at most), and a
    group in which the training step was compiled again never counts. After `groups` of them, or `max_seconds` once at
    least 3 are there, the fit is stopped.
    """

    def __init__(
        self,
        model: Any,
        backend: Backend,
        watch: CompileWatch,
        *,
        groups: int,
        group_seconds: float,
        max_seconds: float,
        on_phase: Callable[[str], None],
    ) -> None:
        super().__init__()
        # Not `self.model`: on JAX, reading that property takes the state out of the training loop's hands.
        self._timed_model = model
        self._backend, self._watch, self._on_phase = backend, watch, on_phase
        self._wanted, self.target_group_seconds, self._max_seconds = groups, group_seconds, max_seconds
        self.first_call_seconds: float | None = None
        self.recompilations = 0
        self.warm_up: list[float] = []
        self.group_seconds: list[float] = []
        self.micro_steps = 0
        self._calls_a_group = 1
        self._calls = self._steps = self._done_in_epoch = 0
        self._counted: int | None = None
        self._first_call_micro_steps = 1
        self._first_compile_seconds: float | None = None
        self._group_started = self._began = 0.0
        self._compiled_before = 0
        self._untimed: Callable[..., Any] = _nothing

    def on_train_begin(self, logs: Any = None) -> None:
        self._untimed = self._timed_model.train_function
        self._timed_model.train_function = self._timed
        self._counted = self._micro_steps_counted(None)
        self._began = self._group_started = time.perf_counter()
        self._on_phase("compile")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done_in_epoch = 0

    def detach(self) -> None:
        """Give the model its own training function back."""
        self._timed_model.train_function = self._untimed

    def _timed(self, *inputs: Any) -> Any:
        outputs = self._untimed(*inputs)
        self._calls += 1
        self._steps += self._micro_steps_of_call()
        if self._calls >= self._calls_a_group:
            self._end_group(outputs)
        return outputs

    def _end_group(self, outputs: Any) -> None:
        self._backend.synchronize(outputs)
        now = time.perf_counter()
        elapsed = now - self._group_started
        _require_finite(self._backend.logs_of(outputs))
        self._steps = self._micro_steps_of_group(outputs)
        if self.first_call_seconds is None:
            self._after_first_call(elapsed)
        else:
            self._after_group(elapsed, now)
        self._calls = self._steps = 0
        self._group_started = time.perf_counter()

    def _micro_steps_of_call(self) -> int:
        """An execution takes several micro-steps, the last one of an epoch maybe fewer."""
        a_call: int = self._timed_model.steps_per_execution
        in_epoch: int | None = self.params.get("steps")
        taken = a_call if in_epoch is None else min(a_call, in_epoch - self._done_in_epoch)
        self._done_in_epoch += max(taken, 1)
        return max(taken, 1)

    def _micro_steps_of_group(self, outputs: Any) -> int:
        """As the optimizer has counted them, where it does.

        An epoch whose length the data do not tell ends within an execution, and Keras rounds the micro-steps that a
        script asks for up to whole executions.
        """
        before, self._counted = self._counted, self._micro_steps_counted(outputs)
        if before is None or self._counted is None:
            return self._steps
        counted = self._counted - before
        most: int = self._calls * self._timed_model.steps_per_execution
        return counted if 0 < counted <= most else self._steps

    def _micro_steps_counted(self, outputs: Any) -> int | None:
        """Needed where an execution takes several; otherwise each call is one."""
        if self._timed_model.steps_per_execution == 1:
            return None
        return self._backend.counted_micro_steps(self._timed_model, outputs)

    @property
    def compile_seconds(self) -> float | None:
        """What compiling the training step took, as the backend tells it, or nothing where it runs eagerly.

        Where the backend does not tell: what the first call took longer than as many micro-steps do later on, the start
        of the input in it. None before there are any.
        """
        if self._first_compile_seconds is not None or self.first_call_seconds is None or not self.group_seconds:
            return self._first_compile_seconds
        later = self._first_call_micro_steps * float(np.median(self.group_seconds))
        return max(0.0, self.first_call_seconds - later)

    def _after_first_call(self, elapsed: float) -> None:
        self.first_call_seconds, self._first_call_micro_steps = elapsed, self._steps
        self._first_compile_seconds = self._watch.compile_seconds if self._watch.compilations else 0.0
        self._compiled_before = self._watch.compilations
        self._on_phase("warm-up")

    def _after_group(self, elapsed: float, now: float) -> None:
        per_micro_step = elapsed / self._steps
        recompiled = self._watch.compilations - self._compiled_before
        self._compiled_before = self._watch.compilations
        self.recompilations += recompiled
        if elapsed < self.target_group_seconds / 2 and not recompiled:
            self._grow(elapsed)
        elif not recompiled:
            self._record(per_micro_step)
        enough = len(self.group_seconds) >= self._wanted
        late = now - self._began > self._max_seconds and len(self.group_seconds) >= 3
        if enough or late:
            self._timed_model.stop_training = True

    def keep_what_there_is(self) -> None:
        """For a fit that ended by itself (a generator ran dry): its warm-up or its first call is all that is known."""
        first = (self.first_call_seconds or math.nan) / self._first_call_micro_steps
        self.group_seconds = self.warm_up[-3:] or [first]
        self.micro_steps = max(self.micro_steps, self._first_call_micro_steps)

    def _grow(self, elapsed: float) -> None:
        factor = min(16.0, self.target_group_seconds / max(elapsed, 1e-6))
        self._calls_a_group = max(self._calls_a_group + 1, math.ceil(self._calls_a_group * factor))

    def _record(self, per_micro_step: float) -> None:
        if not self.group_seconds and len(self.warm_up) < _WARM_UP_GROUPS:
            settled = self.warm_up and abs(per_micro_step / self.warm_up[-1] - 1) < _WARM_UP_SPREAD
            self.warm_up.append(per_micro_step)
            if settled or len(self.warm_up) == _WARM_UP_GROUPS:
                self._on_phase("measure")
            if not settled:
                return
        self.group_seconds.append(per_micro_step)
        self.micro_steps += self._steps


def _nothing(*_: Any) -> None:
    """Stands for a training function until the fit has made its own."""


def _require_finite(logs: Any) -> None:
    for name, value in (logs or {}).items():
        if not np.all(np.isfinite(np.asarray(value, dtype="float64"))):
            raise NotFinite(f"{name} is {float(np.asarray(value).ravel()[0])}")


def median_interval(values: list[float], *, seed: int = 0, draws: int = 2000) -> tuple[float, float, float]:
    """Median of consecutive group figures and its 95% interval by a moving-block bootstrap.

    Blocks (of about the cube root of the length, Künsch 1989) keep what neighbouring groups have in common, such as
    another process that slowed several of them. Same unit as `values`; three equal numbers for a single value.
    """
    array = np.asarray(values, dtype="float64")
    median = float(np.median(array))
    if len(array) < 2:
        return median, median, median
    block = max(1, round(len(array) ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(
        0, len(array) - block + 1, size=(draws, math.ceil(len(array) / block))
    )
    picked = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, : len(array)]
    low, high = np.quantile(np.median(array[picked], axis=1), [0.025, 0.975])
    return median, float(low), float(high)
