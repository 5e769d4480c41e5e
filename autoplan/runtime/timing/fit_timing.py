"""Times the micro-steps of a fit in groups with real synchronisation, and stops it once enough is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.utils import python_utils

from autoplan.runtime.backends import Backend, CompileWatch
from autoplan.runtime.timing.step_times import GroupSeries


class NotFinite(Exception):
    """The training loss is NaN or infinite."""


class GroupTimer(keras.callbacks.Callback):
    """Times a fit from its first micro-step on, around the model's training function.

    Not in `on_train_batch_end`: Keras runs its batch-level callbacks beside the training as long as none of the
    script's own needs each result, and one more such callback would make it wait after every micro-step.

    First call: compilation and first execution together. Then a `GroupSeries`, every group of it ended by waiting for
    the device; a group in which the training step was compiled again never counts. Once enough is known, or the data
    have ended, the fit is stopped.
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
        self.series = GroupSeries(
            groups=groups, group_seconds=group_seconds, max_seconds=max_seconds, on_phase=on_phase
        )
        self.first_call_seconds: float | None = None
        self.recompilations = 0
        self._calls = self._steps = self._done_in_epoch = 0
        self._counted: int | None = None
        self._first_call_micro_steps = 1
        self._first_compile_seconds: float | None = None
        self._group_started = 0.0
        self._unfinished_seconds: float | None = None
        self._compiled_before = 0
        self._untimed: Callable[..., Any] = _nothing

    def on_train_begin(self, logs: Any = None) -> None:
        self._untimed = self._timed_model.train_function
        self._timed_model.train_function = self._timed
        self._counted = self._micro_steps_counted(None)
        self.series.start()
        self._group_started = time.perf_counter()
        self._on_phase("compile")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done_in_epoch = 0

    def on_train_end(self, logs: Any = None) -> None:
        # Keras has waited for the last result to show it at the end of the epoch.
        if self._steps and self.first_call_seconds is not None:
            self._unfinished_seconds = (time.perf_counter() - self._group_started) / self._steps

    def data_ended(self) -> None:
        """There is no more to train on: end the fit, which would go on with the first batches that Keras has kept."""
        self._timed_model.stop_training = True

    def detach(self) -> None:
        """Give the model its own training function back."""
        self._timed_model.train_function = self._untimed

    def _timed(self, *inputs: Any) -> Any:
        outputs = self._untimed(*inputs)
        self._calls += 1
        self._steps += self._micro_steps_of_call()
        if self._calls >= self.series.calls_a_group:
            self._end_group(outputs)
        return outputs

    def _end_group(self, outputs: Any) -> None:
        self._backend.synchronize(outputs)
        elapsed = time.perf_counter() - self._group_started
        require_finite(self._backend.logs_of(outputs))
        self._steps = self._micro_steps_of_group(outputs)
        if self.first_call_seconds is None:
            self._after_first_call(elapsed)
        else:
            self._after_group(elapsed)
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
        groups = self.series.group_seconds
        if self._first_compile_seconds is not None or self.first_call_seconds is None or not groups:
            return self._first_compile_seconds
        later = self._first_call_micro_steps * float(np.median(groups))
        return max(0.0, self.first_call_seconds - later)

    def _after_first_call(self, elapsed: float) -> None:
        self.first_call_seconds, self._first_call_micro_steps = elapsed, self._steps
        self._first_compile_seconds = self._watch.compile_seconds if self._watch.compilations else 0.0
        self._compiled_before = self._watch.compilations
        self._on_phase("warm-up")

    def _after_group(self, elapsed: float) -> None:
        recompiled = self._watch.compilations - self._compiled_before
        self._compiled_before = self._watch.compilations
        self.recompilations += recompiled
        if not recompiled:
            self.series.take(elapsed, self._steps)
        if self.series.enough:
            self._timed_model.stop_training = True

    @property
    def micro_steps(self) -> int:
        """Micro-steps in the groups that count; where none does, in what is known instead."""
        return self.series.micro_steps or self._steps or self._first_call_micro_steps

    def known_seconds(self) -> list[float]:
        """Seconds a micro-step, one entry a group that counts.

        Of a fit that ended by itself before there was one (a generator ran dry), the next best: its warm-up, else what
        came after its first call, else that call.
        """
        if self.series.group_seconds:
            return self.series.group_seconds
        unfinished = [] if self._unfinished_seconds is None else [self._unfinished_seconds]
        first = (self.first_call_seconds or math.nan) / self._first_call_micro_steps
        return self.series.warm_up[-3:] or unfinished or [first]


def _nothing(*_: Any) -> None:
    """Stands for a training function until the fit has made its own."""


def require_finite(logs: Any) -> None:
    """NotFinite where a loss is no number. A metric may be none; it counts where a micro-step tells no loss at all.

    logs  as a training function returns them: a custom micro-step may put the dictionary of a metric among them
    """
    told = python_utils.pythonify_logs(logs)
    losses = {name: value for name, value in told.items() if "loss" in name}
    for name, value in (losses or told).items():
        figures = np.asarray(value, dtype="float64").ravel()
        if not np.all(np.isfinite(figures)):
            raise NotFinite(f"{name} is {figures[~np.isfinite(figures)][0]}")


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
