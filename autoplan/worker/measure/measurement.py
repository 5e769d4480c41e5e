"""Measures a fit: times the real `fit` with its input pipeline, then the same micro-step on one batch without input."""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import Any, Literal

from autoplan.machine import processes
from autoplan.plan.records import Measurement
from autoplan.runtime.backends import CompileWatch
from autoplan.runtime.data import data_facts, lookahead
from autoplan.runtime.data.fit_arguments import without
from autoplan.runtime.optimizers import accumulation_of
from autoplan.runtime.timing.fit_timer import FitTimer
from autoplan.runtime.timing.row_counter import RowCounter
from autoplan.runtime.timing.timed_groups import TimedGroups, median_interval
from autoplan.worker.measure.epoch_events import run_epoch_events
from autoplan.worker.measure.fit_start import FitStart
from autoplan.worker.measure.trial_fit import TrialFit

_INPUT_BOUND_RATIO = 1.15
_CHEAP_COMPILE_SECONDS = 5.0
_COMPUTE_ONLY_GROUPS = 3
_SECONDS_OF_LONG_FITS = 60.0
"""No trial measures longer."""
_PeakSource = Literal["device", "compiled", "resident"]


def measure_fit(fit: TrialFit, setup_seconds: float, *, simulated: bool) -> Measurement:
    """Run the fit until enough groups of micro-steps are timed.

    setup_seconds  what the script took before its fit
    simulated      whether the devices are simulated ones

    NonFiniteLoss if the loss is NaN or infinite. Exceptions of the fit itself pass through.
    """
    started = time.perf_counter()
    watch = fit.backend.watch_compilation()
    timer, others_busy = _timed(fit, watch)
    seconds = timer.known_seconds()
    notes = run_epoch_events(fit)
    fit.on_phase("memory")
    brief = bool(fit.options.get("brief"))
    peak, peak_source = (None, None) if brief else _peak_bytes(fit, cheap=_cheap_to_compile_again(fit, timer))
    # A micro-step alone is compared with those of the fit only where all batches take as long.
    with_alone = not brief and "largest_batch" not in fit.options
    alone = _compute_seconds(fit, timer.series.target_group_seconds / seconds[-1]) if with_alone else None
    median, low, high = median_interval(seconds)
    accumulation = accumulation_of(fit.model.optimizer)
    growth, own_micro_steps = timer.memory.bytes_per_micro_step(), timer.own_micro_steps()
    return Measurement(
        micro_step_seconds=median,
        micro_step_seconds_low=low,
        micro_step_seconds_high=high,
        update_seconds=median * accumulation,
        samples_per_second=_rows_per_micro_step(fit, timer) / median,
        updates_per_second=1 / (median * accumulation),
        compute_micro_step_seconds=alone,
        input_bound=None if alone is None else low > alone * _INPUT_BOUND_RATIO,
        setup_seconds=setup_seconds,
        compile_seconds=timer.compile_seconds or None,
        first_step_seconds=timer.first_call_seconds or math.nan,
        recompilations=timer.recompilations,
        cache_hits=watch.cache_hits,
        cache_misses=watch.cache_misses,
        peak_bytes=peak,
        peak_bytes_source=peak_source,
        groups=len(seconds),
        micro_steps=timer.micro_steps,
        group_seconds=seconds,
        simulated_devices=simulated,
        others_busy_processors=others_busy,
        wall_seconds=time.perf_counter() - started + setup_seconds,
        notes=notes,
        callbacks_ran=[type(one).__name__ for one in fit.callbacks()],
        callbacks_left_out=fit.callbacks_left_out(),
        writers=fit.left_out,
        fits=timer.fits,
        fit_micro_steps=own_micro_steps,
        growth_bytes=None if growth is None else round(growth),
        growth_micro_steps=None if growth is None else timer.memory.micro_steps,
        grown_bytes=None if own_micro_steps is None else timer.memory.bytes_after(own_micro_steps),
        files_written=[] if fit.guard is None else list(fit.guard.during_fit),
    )


def _rows_may_differ(fit: TrialFit) -> bool:
    """Return whether batches may have other numbers of rows than the data's length and batch size say."""
    return "largest_batch" in fit.options or fit.facts.kind in ("generator", "other")


def _timed(fit: TrialFit, watch: CompileWatch) -> tuple[FitTimer, float]:
    """Run the timed fit without callbacks that write, and take the model back to where the fit begins."""
    call = fit.call
    call.model.train_function = None  # an earlier fit of the same model left a compiled function that is not watched
    own_arguments = call.arguments
    with FitStart(fit, longest_seconds=_SECONDS_OF_LONG_FITS) as start:

        def run() -> tuple[FitTimer, float]:
            call.arguments = own_arguments
            return _run_timed(fit, watch, start)

        found = fit.run_without_writers(run, start.restore)
        start.restore()  # what follows would otherwise begin where the fit ended, perhaps with a diverged loss
    return found


def _run_timed(fit: TrialFit, watch: CompileWatch, start: FitStart) -> tuple[FitTimer, float]:
    """Run the fit as the script does, and again from its start while too few groups of micro-steps are timed.

    Returns the timer, and the number of CPU cores that other processes kept busy meanwhile.
    """
    call, options = fit.call, fit.options
    series = TimedGroups(
        groups=int(options.get("groups", 8)),
        group_seconds=float(options.get("group_seconds", 0.5)),
        max_seconds=float(options.get("max_seconds", 60.0)),
        on_phase=fit.on_phase,
    )
    rows = RowCounter() if _rows_may_differ(fit) else None
    timer = FitTimer(call.model, fit.backend, watch, series, fit.on_phase, rows)
    call.arguments = lookahead.call_at_end(call.arguments, timer.data_ended)
    contention = processes.CpuContention()
    while True:
        _run_once(fit, timer)
        if timer.fit_micro_steps == 0 or timer.data_exhausted or not series.is_worth_another_fit or not start.restore():
            return timer, contention.busy_processors()


def _run_once(fit: TrialFit, timer: FitTimer) -> None:
    """Run the fit from its first epoch to its last; the timer ends it earlier when it has timed enough."""
    arguments = without(fit.arguments(), "callbacks", "epochs", "validation_freq")
    # A fit without epochs would have nothing to measure.
    epochs = max(fit.call.arguments.get("epochs", 1), fit.call.arguments.get("initial_epoch", 0) + 1)
    # validation_freq is raised instead of removing the validation: `validation_split` also selects the training rows.
    every = [*fit.callbacks(), timer]
    try:
        fit.call.proceed(**arguments, epochs=epochs, validation_freq=sys.maxsize, callbacks=every)
    finally:
        timer.detach()


def _rows_per_micro_step(fit: TrialFit, timer: FitTimer) -> float:
    """Return the mean number of samples of a micro-step: counted, if batches differ, else by the length of the data.

    It is less than a batch if an epoch ends in a partial batch.
    """
    facts, global_batch = fit.facts, float(fit.global_batch)
    counted = None if timer.rows is None else timer.rows.mean_rows
    if counted is not None:
        return counted
    if "mean_rows" in fit.options:  # TensorFlow reads its batches in a graph
        return float(fit.options["mean_rows"])
    micro_steps: int | None = timer.params.get("steps")
    if facts.kind not in ("arrays", "PyDataset", "DataLoader") or not micro_steps or facts.explicit_steps:
        return global_batch
    return min(global_batch, (facts.samples or 0) / micro_steps)


def _cheap_to_compile_again(fit: TrialFit, timer: FitTimer) -> bool:
    """Return whether compiling the training step again is cheap: from the compilation cache, or fast."""
    return bool(fit.options.get("cache_dir")) or (timer.compile_seconds or 0.0) < _CHEAP_COMPILE_SECONDS


def _peak_bytes(fit: TrialFit, *, cheap: bool) -> tuple[int | None, _PeakSource | None]:
    """Return the peak memory of a device and where the number comes from.

    If batches differ, the largest batch is run once. In order of preference: the device's own counter; the compiled
    program, if compiling it again is cheap; the resident size of this process.
    """
    batch = _largest_batch(fit)
    compiled = None
    if batch is not None and fit.model.jit_compile and cheap and fit.backend.peak_bytes() is None:
        compiled = fit.backend.compiled_bytes(fit.model, batch)
    if batch is not None and "largest_batch" in fit.options:
        fit.on_phase("largest batch")
        fit.backend.fixed_batch_runner(fit.model, batch)(1)
    on_device = fit.backend.peak_bytes()
    if on_device is not None:
        return on_device, "device"
    if compiled is not None:
        return compiled, "compiled"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident"


def _largest_batch(fit: TrialFit) -> Any:
    """Return a batch of the trial's size; if batches differ, the largest. None if no batch is available."""
    facts, rows = fit.facts, fit.global_batch
    shapes = fit.options.get("largest_batch")
    if shapes is not None:
        usual_rows = (facts.sampled or shapes)[0][0]
        rows = math.ceil(rows * shapes[0][0] / usual_rows)
        facts = data_facts.with_usual_batch(facts, shapes)
    return data_facts.sample_batch(fit.call.arguments, facts, rows)


def _compute_seconds(fit: TrialFit, micro_steps_per_group: float) -> float | None:
    """Return the median time of a micro-step whose batch is already on the device; None if no batch is available."""
    batch = data_facts.sample_batch(fit.call.arguments, fit.facts, fit.global_batch)
    if batch is None:
        return None
    fit.on_phase("measure without input")
    run = fit.backend.fixed_batch_runner(fit.model, batch)
    per_execution = fit.model.steps_per_execution
    micro_steps = max(1, round(micro_steps_per_group / (2 * per_execution))) * per_execution
    run(per_execution)
    seconds = []
    for _ in range(1 + _COMPUTE_ONLY_GROUPS):
        started = time.perf_counter()
        run(micro_steps)
        seconds.append((time.perf_counter() - started) / micro_steps)
    return median_interval(seconds[1:])[0]
