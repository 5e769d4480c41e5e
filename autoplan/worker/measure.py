"""A fit -> Measurement: the real `fit` with the real input path, timed; then the same micro-step on one batch alone."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import keras

from autoplan.machine import processes
from autoplan.plan.records import Measurement
from autoplan.runtime import callbacks
from autoplan.runtime.apply import Change
from autoplan.runtime.backends import Backend, CompileWatch
from autoplan.runtime.data import data_facts, regroup, sample
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.fit import fit_arguments
from autoplan.runtime.intercept import FitCall
from autoplan.runtime.optimizers import accumulation_of
from autoplan.runtime.timing.fit_timing import GroupTimer, median_interval
from autoplan.worker.channel import disk_is_full
from cost_models.config import Batch

_INPUT_BOUND_RATIO = 1.15
_CHEAP_COMPILE_SECONDS = 5.0
_ALONE: dict[str, Any] = {
    "validation_data": None,
    "validation_split": 0.0,
    "callbacks": None,
    "epochs": 1,
    "initial_epoch": 0,
    "shuffle": False,
    "verbose": 0,
}
"""Arguments of a fit of which nothing but its micro-steps is wanted."""
_PeakSource = Literal["device", "compiled", "resident"]


def timed_arguments(call: FitCall, facts: DataFacts, change: Change | None, **instead: Any) -> dict[str, Any]:
    """The script's arguments, with those of `instead`, under the wanted batch."""
    arguments = {**call.arguments, **instead}
    return arguments if change is None else fit_arguments(call.model, arguments, facts, change)


def measure(
    call: FitCall,
    facts: DataFacts,
    change: Change | None,
    backend: Backend,
    options: dict[str, Any],
    on_phase: Callable[[str], None],
    setup_seconds: float,
    *,
    simulated: bool,
) -> Measurement:
    """Run the fit until enough groups of micro-steps are timed.

    options: groups, group_seconds, max_seconds, validation (also run one), checkpoint (also save one).
    Raises NotFinite when the loss is not a number; whatever the fit itself raises passes through.
    """
    started = time.perf_counter()
    watch = backend.watch_compilation()
    call.model.train_function = None  # an earlier fit of the same model left one that is compiled, and not watched
    timer = _timer(call, backend, watch, options, on_phase)
    call.arguments = sample.told_of_end(call.arguments, timer.data_ended)
    neighbours = processes.Neighbours()
    _timed_fit(call, timed_arguments(call, facts, change), timer)
    others_busy = neighbours.busy_processors()
    seconds = timer.known_seconds()
    batch_size = change.wanted.batch.global_size if change is not None else facts.batch
    notes = _extras(call, facts, change, options, on_phase)
    on_phase("memory")
    peak, peak_source = _peak(call, facts, batch_size, backend, cheap=_cheap_to_compile_again(options, timer))
    alone = _compute_only(call, facts, batch_size, backend, timer.series.target_group_seconds / seconds[-1], on_phase)
    median, low, high = median_interval(seconds)
    rows = _rows_a_micro_step(facts, batch_size, timer)
    accumulation = accumulation_of(call.model.optimizer)
    return Measurement(
        micro_step_seconds=median,
        micro_step_seconds_low=low,
        micro_step_seconds_high=high,
        update_seconds=median * accumulation,
        samples_per_second=rows / median,
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
    )


def _timer(
    call: FitCall, backend: Backend, watch: CompileWatch, options: dict[str, Any], on_phase: Callable[[str], None]
) -> GroupTimer:
    return GroupTimer(
        call.model,
        backend,
        watch,
        groups=int(options.get("groups", 8)),
        group_seconds=float(options.get("group_seconds", 0.5)),
        max_seconds=float(options.get("max_seconds", 60.0)),
        on_phase=on_phase,
    )


def _timed_fit(call: FitCall, arguments: dict[str, Any], timer: GroupTimer) -> None:
    """The fit as the script has it, less what writes, what works by epochs, and validation."""
    kept = callbacks.kept_in_trials(call.arguments)
    left_out = ("callbacks", "epochs", "initial_epoch", "validation_freq")
    arguments = {name: value for name, value in arguments.items() if name not in left_out}
    # A validation that never comes, rather than none: `validation_split` also decides what is trained on.
    call.proceed(**arguments, epochs=sys.maxsize, validation_freq=sys.maxsize, callbacks=[*kept, timer])
    timer.detach()


def _rows_a_micro_step(facts: DataFacts, batch_size: int, timer: GroupTimer) -> float:
    """Samples that a micro-step takes on average: less than a batch where an epoch ends in a partial one."""
    micro_steps: int | None = timer.params.get("steps")
    if facts.kind not in ("arrays", "PyDataset", "DataLoader") or not micro_steps or facts.explicit_steps:
        return float(batch_size)
    return min(float(batch_size), (facts.samples or 0) / micro_steps)


def _cheap_to_compile_again(options: dict[str, Any], timer: GroupTimer) -> bool:
    """Whether the compiled training step can be had for its figures: from the compilation cache, or soon."""
    return bool(options.get("cache_dir")) or (timer.compile_seconds or 0.0) < _CHEAP_COMPILE_SECONDS


def _peak(
    call: FitCall, facts: DataFacts, batch_size: int, backend: Backend, *, cheap: bool
) -> tuple[int | None, _PeakSource | None]:
    """Largest memory of a device, from the best source there is.

    The compiled program is asked only where the compilation cache or a quick compiler makes that cheap.
    """
    on_device = backend.peak_bytes()
    if on_device is not None:
        return on_device, "device"
    batch = data_facts.sample_batch(call.arguments, facts, batch_size)
    if batch is not None and call.model.jit_compile and cheap:
        compiled = backend.compiled_bytes(call.model, batch)
        if compiled is not None:
            return compiled, "compiled"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident"


def _compute_only(
    call: FitCall,
    facts: DataFacts,
    batch_size: int,
    backend: Backend,
    micro_steps_a_group: float,
    on_phase: Callable[[str], None],
) -> float | None:
    """Seconds of a micro-step whose batch is already there: median of a few groups. None where no batch can be had."""
    batch = data_facts.sample_batch(call.arguments, facts, batch_size)
    if batch is None:
        return None
    on_phase("measure without input")
    run = backend.fixed_batch_runner(call.model, batch)
    an_execution = call.model.steps_per_execution
    executions = max(1, round(micro_steps_a_group / (2 * an_execution)))
    micro_steps = executions * an_execution
    run(an_execution)
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        run(micro_steps)
        seconds.append((time.perf_counter() - started) / micro_steps)
    return median_interval(seconds[1:])[0]


def _end_of_epoch(call: FitCall, facts: DataFacts, change: Change | None) -> dict[str, Any]:
    """A fit of the last whole effective batch and what follows it: as an epoch of this configuration ends."""
    batch = change.wanted.batch.effective if change is not None else facts.batch
    samples = data_facts.training_samples(call.arguments)
    rows = slice(samples - min(samples, samples % batch + batch), samples)
    last = {
        name: data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, rows), call.arguments.get(name))
        for name in ("x", "y", "sample_weight")
    }
    return timed_arguments(call, facts, change, **last, **_ALONE, batch_size=facts.batch)


def _end_of_dataset(call: FitCall, facts: DataFacts, change: Change | None) -> dict[str, Any]:
    """The same of a PyDataset."""
    script = change.script.batch if change is not None else Batch(facts.batch)
    effective = change.wanted.batch.effective if change is not None else facts.batch
    an_update, batches = max(script.accumulation, math.ceil(effective / facts.batch)), facts.batches or 1
    end = regroup.End(call.arguments["x"], min(batches, batches % an_update + an_update))
    return timed_arguments(call, replace(facts, micro_steps=end.num_batches), change, x=end, **_ALONE)


def validation_batch(arguments: dict[str, Any], facts: DataFacts, change: Change | None) -> int:
    """Samples at a time of a validation in arrays, as `fit` takes them: its own number, else that of the training.

    Steps that the script counts are steps of the script's own batch, whatever the plan makes of the training's.
    """
    own: int | None = arguments.get("validation_batch_size")
    if own is not None or change is None or arguments.get("validation_steps"):
        return own or facts.batch
    return change.wanted.batch.global_size


def _validation(call: FitCall) -> Any:
    """What the script validates on: its own data, or the rows that it splits off; None where it does not validate."""
    given = call.arguments.get("validation_data")
    if given is not None or not call.arguments.get("validation_split"):
        return given
    rows = slice(data_facts.training_samples(call.arguments), None)
    names = ("x", "y", "sample_weight")
    return tuple(
        data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, rows), call.arguments.get(name)) for name in names
    )


def _extras(
    call: FitCall,
    facts: DataFacts,
    change: Change | None,
    options: dict[str, Any],
    on_phase: Callable[[str], None],
) -> list[str]:
    """What a verification also runs: the end of an epoch, a validation, a checkpoint. Returns which of them ran."""
    ran = []
    end = {"arrays": _end_of_epoch, "PyDataset": _end_of_dataset}.get(facts.kind)
    if options.get("remainder") and end is not None and facts.batches is not None:
        on_phase("remainder")
        call.proceed(**end(call, facts, change))
        ran.append("remainder")
    validation = _validation(call) if options.get("validation") else None
    if validation is not None:
        on_phase("validation")
        x, y, weight = keras.utils.unpack_x_y_sample_weight(validation)
        steps = call.arguments.get("validation_steps")
        size = None if data_facts.is_tf_dataset(x) else validation_batch(call.arguments, facts, change)
        call.model.evaluate(x, y, batch_size=size, sample_weight=weight, steps=steps, verbose=0)
        ran.append("validation")
    if options.get("checkpoint"):
        on_phase("checkpoint")
        try:
            ran += _save_checkpoint(call)
        except OSError as error:
            if not disk_is_full(error):  # which says nothing of the configuration
                raise
    return ran


def _save_checkpoint(call: FitCall) -> list[str]:
    """Save the model -> what that made: a `checkpoint`, `weights` where it cannot be saved whole, or nothing.

    A model without `get_config` cannot be saved whole, and a trainer around other models (a `train_step`, no `call`)
    not at all, plan or no plan. That matters where the script saves it so itself.
    """
    asked = {callbacks.saved_by(one) for one in callbacks.as_list(call.arguments.get("callbacks"))}
    ways = (("checkpoint", call.model.save, "model.keras"), ("weights", call.model.save_weights, "model.weights.h5"))
    with tempfile.TemporaryDirectory(prefix="autoplan-") as folder:
        for made, save, name in ways:
            try:
                save(Path(folder) / name)
            except (NotImplementedError, TypeError, ValueError):
                if made in asked:
                    raise
            else:
                return [made]
    return []
