"""Times the micro-steps of a `fit` in groups, and stops the fit after enough groups."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.utils import python_utils

from autoplan.runtime.backends import Backend, CompileWatch
from autoplan.runtime.timing.memory_growth import MemoryGrowth
from autoplan.runtime.timing.row_counter import RowCounter
from autoplan.runtime.timing.timed_groups import TimedGroups


class NonFiniteLoss(Exception):
    """The training loss is NaN or infinite."""


class FitTimer(keras.callbacks.Callback):
    """Times the calls of a model's training function during a fit.

    It does not use `on_train_batch_end`: a callback with such a hook makes Keras wait for the result of every
    micro-step, unless the script itself has one.

    The first call is timed alone, because it includes compilation. Later calls are timed in groups (`TimedGroups`), and
    each group ends by waiting for the device. A group in which the training step was compiled again does not count. The
    fit is stopped after enough groups, or at the end of the data.

    A fit that ends before may be run again with the same timer. A group continues in the next fit; the time between
    two fits, from the end of the last epoch to the beginning of the first, is not measured.

    first_call_seconds  time of the first call
    recompilations      compilations after the first call
    total_micro_steps   micro-steps of the first call and of all groups
    fits                number of fits that have begun
    fit_micro_steps     micro-steps of the present fit
    data_exhausted      whether the data have ended before the fit
    memory              growth of memory during the first fit
    rows                counts the rows of the batches, where it is given
    """

    def __init__(
        self,
        model: Any,
        backend: Backend,
        watch: CompileWatch,
        series: TimedGroups,
        on_phase: Callable[[str], None],
        rows: RowCounter | None = None,
    ) -> None:
        super().__init__()
        # Not `self.model`: on JAX, reading that property takes the state from the training loop.
        self._timed_model = model
        self._backend, self._watch, self.series, self._on_phase = backend, watch, series, on_phase
        self.rows = rows
        self.first_call_seconds: float | None = None
        self.recompilations = self.total_micro_steps = 0
        self.fits = self.fit_micro_steps = 0
        self.data_exhausted = False
        self.memory = MemoryGrowth()
        self._calls = self._calls_in_fit = self._steps = self._done_in_epoch = 0
        self._earlier_seconds, self._earlier_steps = 0.0, 0
        self._outputs: Any = None
        self._counted: int | None = None
        self._first_epoch = 0
        self._first_call_micro_steps = 1
        self._first_compile_seconds: float | None = None
        self._group_started = 0.0
        self._unfinished_seconds: float | None = None
        self._compiled_before = 0
        self._untimed: Callable[..., Any] = _not_started

    def on_train_begin(self, logs: Any = None) -> None:
        self._untimed = self._timed_model.train_function
        self._timed_model.train_function = self._timed
        self._counted = self._micro_steps_counted(None)
        self.fits += 1
        self.fit_micro_steps = self._calls_in_fit = 0
        if self.fits == 1:
            self.series.start()
            self._on_phase("compile")
        self._group_started = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done_in_epoch = 0
        if self.fit_micro_steps == 0:
            self._first_epoch = epoch

    def on_train_end(self, logs: Any = None) -> None:
        # Keras has waited for the last result, because it logs the result at the end of the epoch.
        if self._steps:
            self._earlier_seconds += time.perf_counter() - self._group_started
            self._require_finite()
            self._earlier_steps += self._micro_steps_of_group(self._outputs)
            self._steps = self._calls_in_fit = 0
            if self.first_call_seconds is not None:
                self._unfinished_seconds = self._earlier_seconds / self._earlier_steps
        self._outputs = None

    def data_ended(self) -> None:
        """End the fit, because the data are exhausted. Keras would continue with the first batches, which it stores."""
        self.data_exhausted = True
        self._timed_model.stop_training = True

    def detach(self) -> None:
        """Restore the model's own training function."""
        if self._untimed is not _not_started:
            self._timed_model.train_function = self._untimed

    def _timed(self, *inputs: Any) -> Any:
        counted = inputs if self.rows is None else self.rows.watched(inputs)
        outputs = self._outputs = self._untimed(*counted)
        taken = self._micro_steps_of_call()
        self._calls += 1
        self._calls_in_fit += 1
        self._steps += taken
        self.fit_micro_steps += taken
        if self.fits == 1 and self.first_call_seconds is not None:
            self.memory.sample(self.fit_micro_steps)
        overdue = self.series.is_overdue(self._earlier_seconds + time.perf_counter() - self._group_started)
        if self._calls >= self.series.calls_per_group or overdue:
            self._end_group(outputs)
        return outputs

    def _end_group(self, outputs: Any) -> None:
        self._backend.synchronize(outputs)
        elapsed = self._earlier_seconds + time.perf_counter() - self._group_started
        self._require_finite()
        self._steps = self._earlier_steps + self._micro_steps_of_group(outputs)
        self.total_micro_steps += self._steps
        if self.first_call_seconds is None:
            self._after_first_call(elapsed)
        else:
            self._after_group(elapsed)
        self._calls = self._calls_in_fit = self._steps = self._earlier_steps = 0
        self._earlier_seconds = 0.0
        self._group_started = time.perf_counter()

    def _require_finite(self) -> None:
        try:
            require_finite(self._backend.logs_of(self._outputs))
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error} {self._where()}") from None

    def _where(self) -> str:
        """Return how far the fit has come, in words."""
        total = self.own_micro_steps()
        of = "" if total is None else f" of the {total:,} that the fit has"
        return f"by micro-step {self.fit_micro_steps:,}{of}"

    def own_micro_steps(self) -> int | None:
        """Return the micro-steps of the whole fit; None if its data do not say."""
        steps: int | None = self.params.get("steps")
        epochs: int | None = self.params.get("epochs")
        return None if steps is None or epochs is None else steps * max(1, epochs - self._first_epoch)

    def _micro_steps_of_call(self) -> int:
        """Return the micro-steps of one execution; the last execution of an epoch may have fewer."""
        per_call: int = self._timed_model.steps_per_execution
        in_epoch: int | None = self.params.get("steps")
        taken = per_call if in_epoch is None else min(per_call, in_epoch - self._done_in_epoch)
        self._done_in_epoch += max(taken, 1)
        return max(taken, 1)

    def _micro_steps_of_group(self, outputs: Any) -> int:
        """Return the micro-steps that the optimizer has counted, if it counts them.

        An epoch over data of unknown length ends within an execution, and Keras rounds the micro-steps that a script
        requests up to whole executions.
        """
        before, self._counted = self._counted, self._micro_steps_counted(outputs)
        if before is None or self._counted is None:
            return self._steps
        counted = self._counted - before
        most: int = self._calls_in_fit * self._timed_model.steps_per_execution
        return counted if 0 < counted <= most else self._steps

    def _micro_steps_counted(self, outputs: Any) -> int | None:
        """Return the optimizer's counter; None if each call is one micro-step, because the calls are then counted."""
        if self._timed_model.steps_per_execution == 1:
            return None
        return self._backend.counted_micro_steps(self._timed_model, outputs)

    @property
    def compile_seconds(self) -> float | None:
        """Seconds that compiling the training step took, as the backend reports them; 0 if it runs eagerly.

        If the backend reports nothing, this is the difference between the first call and the same number of later
        micro-steps, which includes the start of the input pipeline. None before any group has been timed.
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
            self.series.add(elapsed, self._steps, calls=self._calls)
        if self.series.is_complete:
            self._timed_model.stop_training = True

    @property
    def micro_steps(self) -> int:
        """Micro-steps in the times that `known_seconds` returns."""
        short = self.series.short_group
        in_short_group = 0 if short is None or self.series.warm_up else short[1]
        return self.series.micro_steps or self._earlier_steps or in_short_group or self._first_call_micro_steps

    def known_seconds(self) -> list[float]:
        """Return the seconds per micro-step of each group that counts.

        If the fit ended before any such group (a generator was exhausted), return the warm-up groups; without these the
        calls of the unfinished group; without these the last group that was too short; without these the first call.
        """
        if self.series.group_seconds:
            return self.series.group_seconds
        unfinished = [] if self._unfinished_seconds is None else [self._unfinished_seconds]
        short = [] if self.series.short_group is None else [self.series.short_group[0]]
        first = (self.first_call_seconds or math.nan) / self._first_call_micro_steps
        return self.series.warm_up[-3:] or unfinished or short or [first]


def _not_started(*_: Any) -> None:
    """Placeholder for the training function until the fit has made it."""


def require_finite(logs: Any) -> None:
    """Raise NonFiniteLoss if a loss is NaN or infinite. Metrics are only checked if the logs contain no loss.

    logs  outputs of a training function; a custom micro-step may include the dictionary of a metric
    """
    flat = python_utils.pythonify_logs(logs)
    losses = {name: value for name, value in flat.items() if "loss" in name}
    for name, value in (losses or flat).items():
        figures = np.asarray(value, dtype="float64").ravel()
        if not np.all(np.isfinite(figures)):
            raise NonFiniteLoss(f"{name} is {figures[~np.isfinite(figures)][0]}")
