"""Runs one job in this process: applies settings, runs the source up to its fit, and answers the job there."""

from __future__ import annotations

import math
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import keras

from autoplan.errors import AutoplanError, HardwareError
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.machine import process_settings, processes
from autoplan.plan.records import FailureKind
from autoplan.runtime import backends, callbacks
from autoplan.runtime.apply import Change, ProcessSettings, apply_to_model
from autoplan.runtime.data import data_facts, lookahead, rebatch, regroup, torch_dataloader
from autoplan.runtime.data.batch_shapes import LOOK_SECONDS
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.intercept import FitCall, Interception, run_one_micro_step
from autoplan.runtime.live_models.build import ensure_built
from autoplan.runtime.timing.fit_timer import NonFiniteLoss
from autoplan.runtime.user_code.failure_reason import reason
from autoplan.sources.source import SourceSpec
from autoplan.worker import run_to_fit, synthetic_data
from autoplan.worker.channel import Channel, disk_is_full
from autoplan.worker.custom_loops import PATIENCE_SECONDS, LoopWatch, may_fit_again
from autoplan.worker.files.guard import WriteGuard, guard_of
from autoplan.worker.measure.epoch_events import run_one_training_micro_step, run_validation_batch
from autoplan.worker.measure.fit_start import FitStart
from autoplan.worker.measure.measurement import measure_fit
from autoplan.worker.measure.redraw import remember_initializers
from autoplan.worker.measure.trial_fit import FitOptions, TrialFit
from autoplan.worker.measure.updates import run_updates
from autoplan.worker.observation import observe_fit
from autoplan.worker.seeds import BASE_SEED, offset_random_seed
from autoplan.worker.split_probe.probe import SplitOptions, probe_fit
from cost_models.workload.serialization import workload_to_dict

if TYPE_CHECKING:
    from autoplan.worker.trace.trace_fit import TraceOptions

_OBSERVES_ONLY = (JobKind.OBSERVE, JobKind.TRACE)
_TRAINS_NOTHING = (*_OBSERVES_ONLY, JobKind.LOWER)
_LONGEST_FOLDER = 64
Answer = Mapping[str, object]
"""The plain values that answer a job."""
_INPUT_MODULES = frozenset(module.__file__ for module in (rebatch, regroup, torch_dataloader, lookahead))
"""Files of the modules that read batches: an exception with a frame in one of them was raised by the data."""


def run_job(job: Job, channel: Channel) -> None:
    """Answer one job and end the process. Never returns."""
    os.environ["AUTOPLAN_TRIAL"] = "1"
    os.environ["MPLBACKEND"] = "Agg"  # a window with a figure would block every trial until somebody closes it
    _set_temporary_folder(job.options.get("temporary"))
    channel.started()
    try:
        JobProcess(job, channel).run()
    except AutoplanError as error:
        cause = error.__cause__
        if cause is not None:
            channel.log(cause)
        if backends.get(job.backend).is_out_of_memory(error):
            channel.failure(FailureKind.OOM, str(error) if cause is None else _message_of(cause))
        if job.kind in _OBSERVES_ONLY or job.kind is JobKind.PROBE:
            channel.error(error)
        if job.kind is JobKind.LOWER and isinstance(error, HardwareError):
            channel.error(error)  # the compiler does not support this hardware with any configuration
        _fail_if_disk_is_full(channel, error)
        channel.failure(FailureKind.UNSUPPORTED if _changes(job) else FailureKind.CRASH, str(error))
    except BaseException as error:  # noqa: BLE001 -- every end of a trial is a result of its study
        channel.log(error)
        cause = error.__cause__ if isinstance(error, run_to_fit.InsideFit) and error.__cause__ is not None else error
        _fail_if_disk_is_full(channel, cause)
        channel.failure(*_classified(job, cause))


def _set_temporary_folder(folder: str | None) -> None:
    """Put temporary files into a folder that the client removes: some of them remain after the job has ended.

    These are AutoGraph's code and the sockets of data-loading processes. A socket's path has at most 107 bytes, of
    which `multiprocessing` needs about 40.
    """
    if folder is not None and len(folder) <= _LONGEST_FOLDER:
        os.environ["TMPDIR"] = tempfile.tempdir = folder


class JobProcess:
    """The state of one job: its backend, its configuration, and the fit that it waits for."""

    def __init__(self, job: Job, channel: Channel) -> None:
        self.job, self.channel = job, channel
        self.backend = backends.get(job.backend)
        self.change = _change(job)
        settings = ProcessSettings(self.change, self.backend) if self.change is not None else None
        self.interception = Interception(self._on_fit, settings)
        self._loops: LoopWatch | None = None
        self.guard = guard_of(job.options)

    def run(self) -> None:
        """Run the job. Ends the process on success."""
        self._prepare_process()
        if self.job.kind is JobKind.PROBE:
            from autoplan.worker.measure.machine_rates import measure_rates

            self.channel.phase("probe")
            self.channel.result(measure_rates(self.job.backend))
        self.channel.phase("setup")
        with self._variables():
            self.interception.install()
            source = self.job.source
            if source is None:
                raise AutoplanError(f"a {self.job.kind.value} job needs a source")
            self.guard.install()
            with self._loop_watch(source):
                directory, under = self.job.options.get("scratch"), run_to_fit.circumstances(self.job)
                run_to_fit.run(source, self._on_builder, directory=directory, under=under)
        raise run_to_fit.never_fits(source, self.interception.seen.fits)

    def _loop_watch(self, source: SourceSpec) -> AbstractContextManager[Any]:
        """Return a watch that ends an observing job if the script trains in a custom loop, which may take days."""
        if self.job.kind not in _OBSERVES_ONLY or source.kind != "script":
            return nullcontext()
        patience_seconds = float(self.job.options.get("loop_patience_seconds", PATIENCE_SECONDS))
        self._loops = LoopWatch(
            source, lambda: self.channel.error(run_to_fit.never_fits(source, fits=0)), patience_seconds
        )
        return self._loops

    def _prepare_process(self) -> None:
        options = self.job.options
        lacking = [] if self.change is None else process_settings.apply(self.change.wanted)
        if lacking:
            raise AutoplanError("; ".join(lacking))
        if self.job.kind is JobKind.LOWER:
            from autoplan.worker import compile_job

            compile_job.configure_process(cast("compile_job.CompileOptions", options))
        elif self.job.devices is not None:
            self.backend.configure_devices(self.job.devices)
        if options.get("cache_dir"):
            self.backend.enable_compilation_cache(Path(options["cache_dir"]))
        if self.job.kind is JobKind.NUMERICS:
            remember_initializers()
            offset_random_seed(int((options.get("seeds") or [BASE_SEED])[0]))
        elif options.get("seed") is not None:
            keras.utils.set_random_seed(options["seed"])

    def _abstract(self) -> bool:
        """Return whether variables are abstract, which suffices for a job that trains nothing (JAX only)."""
        wanted = self.job.kind in _TRAINS_NOTHING and bool(self.job.options.get("abstract"))
        return wanted and self.backend.name == "jax"

    def _variables(self) -> AbstractContextManager[None]:
        if self._abstract():
            from autoplan.worker.trace.abstract_variables import abstract_variables

            return abstract_variables()
        return nullcontext()

    def _on_builder(self, model: Any, arguments: FitArguments) -> None:
        """Fit a builder's model, on synthetic data if the builder has none."""
        batch_size = int(self.job.options.get("batch_size") or synthetic_data.SYNTHETIC_BATCH)
        shapes = self.job.source.input_shapes if self.job.source is not None else {}
        if "x" in arguments:
            run_to_fit.refuse_shapes(self.job.source)
            model.fit(**arguments)
        elif self.job.kind in _TRAINS_NOTHING:
            run_to_fit.check_fit(self.job.source, 1, model, arguments)
            facts = _synthetic_facts(batch_size, shapes)
            self._answer(FitCall(1, model, {"batch_size": batch_size}, type(model).fit), facts)
        else:
            timed = self.change if self.job.kind is JobKind.MEASURE else None
            wanted = None if timed is None else timed.wanted.batch
            model.fit(**arguments, **synthetic_data.synthetic_arguments(model, batch_size, wanted, shapes))

    def _on_fit(self, call: FitCall) -> Any:
        """Called in place of each `fit` of the source."""
        if self._loops is not None:
            self._loops.cancel()
        source = self.job.source
        wanted = source.fit_index if source is not None else 1
        run_to_fit.check_fit(source, call.index, call.model, call.arguments)
        if source is not None and source.kind == "script":
            run_to_fit.refuse_shapes(source)
        if call.index < wanted:
            self.interception.checkpoints.add(call.model, call.arguments.get("callbacks"))
            if self._abstract():
                return keras.callbacks.History()
            with self.guard.fit(()):
                return run_one_micro_step(call)
        try:
            call.arguments = lookahead.buffer_first_batch(call.arguments)
            with self.guard.fit(callbacks.as_list(call.arguments.get("callbacks"))):
                self._answer(call, self._facts(call))
        except (AutoplanError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise run_to_fit.InsideFit from error

    def _facts(self, call: FitCall) -> DataFacts:
        try:
            facts = data_facts.describe(call.arguments, look_seconds=self._look_seconds())
        except StopIteration:  # the data have no first batch
            raise run_to_fit.no_samples(self.job.source, call.index) from None
        if facts.samples == 0:
            raise run_to_fit.no_samples(self.job.source, call.index)
        usual = self.job.options.get("usual_batch")
        return facts if usual is None else data_facts.with_usual_batch(facts, usual)

    def _look_seconds(self) -> float:
        """Return the time for looking through the data: only a job that ends without training may read them ahead."""
        return LOOK_SECONDS if self.job.kind is JobKind.OBSERVE else 0.0

    def _answer(self, call: FitCall, facts: DataFacts) -> None:
        answers: dict[JobKind, Callable[[FitCall, DataFacts], Answer]] = {
            JobKind.OBSERVE: self._observe,
            JobKind.TRACE: self._trace,
            JobKind.MEASURE: self._measure,
            JobKind.NUMERICS: self._numerics,
            JobKind.LOWER: self._lower,
            JobKind.SPLIT: self._split,
            JobKind.VALIDATE: self._validate,
        }
        self.channel.result(answers[self.job.kind](call, facts))

    def _observe(self, call: FitCall, facts: DataFacts) -> Answer:
        found = self._observed(call, facts)
        if self.backend.name == "jax":  # elsewhere the platform decides nothing that is traced
            from autoplan.worker.trace.attention_calls import attention_calls
            from autoplan.worker.trace.lstm_calls import cudnn_lstms

            calls = attention_calls(call.model, call.arguments, facts)
            lstms = cudnn_lstms(call.model, call.arguments, facts)
            found = found.model_copy(update={"attention_calls": calls, "cudnn_lstms": lstms})
        return dict(found.model_dump(mode="json"))

    def _observed(self, call: FitCall, facts: DataFacts) -> Observation:
        found = observe_fit(call, facts, self.interception.seen, self.backend)
        # With abstract variables, the memory of this process says nothing about a training.
        resident = None if self._abstract() else processes.standalone_bytes(os.getpid())
        source = self.job.source
        again = source is not None and source.kind == "script" and may_fit_again(source)
        files = _files_of(self.guard)
        return found.model_copy(update={"process_bytes": resident, "may_fit_again": again, **files})

    def _trace(self, call: FitCall, facts: DataFacts) -> Answer:
        from autoplan.worker.trace.trace_fit import trace_programs

        observation = self._observed(call, facts)
        self._apply(call)
        self.channel.phase("trace")
        built_with = self.job.config or observation.config
        workload = trace_programs(call.model, call.arguments, facts, built_with, cast("TraceOptions", self.job.options))
        return {"observation": observation.model_dump(mode="json"), "workload": workload_to_dict(workload)}

    def _split(self, call: FitCall, facts: DataFacts) -> Answer:
        self.channel.phase("split")
        options = cast("SplitOptions", self.job.options)
        return dict(probe_fit(call, facts, self.backend, options).model_dump(mode="json"))

    def _lower(self, call: FitCall, facts: DataFacts) -> Answer:
        from autoplan.worker import compile_job

        self._apply(call)
        options = cast("compile_job.CompileOptions", self.job.options)
        return compile_job.compile_fit(call.model, call.arguments, facts, options, self.channel.phase)

    def _apply(self, call: FitCall) -> Change | None:
        if self.change is not None:
            apply_to_model(call.model, self.change)
        return self.change

    def _measure(self, call: FitCall, facts: DataFacts) -> Answer:
        setup_seconds = time.monotonic() - self.interception.seen.started_at
        # TensorFlow cannot compile a micro-step that creates the variables of the model.
        ensure_built(call.model, call.arguments, facts)
        change = self._apply(call)
        simulated = self.job.devices is not None and self.job.devices > 1
        found = measure_fit(self._trial(call, facts, change), setup_seconds, simulated=simulated)
        return dict(found.model_dump(mode="json"))

    def _validate(self, call: FitCall, facts: DataFacts) -> Answer:
        ensure_built(call.model, call.arguments, facts)
        trial = self._trial(call, facts, self._apply(call))
        self.channel.phase("compile")
        run_one_training_micro_step(trial)
        return {"rows": run_validation_batch(trial), "held_bytes": processes.standalone_bytes(os.getpid(), ever=True)}

    def _numerics(self, call: FitCall, facts: DataFacts) -> Answer:
        self.channel.phase("numerics")
        live = self.job.source is not None and self.job.source.kind == "instance"
        trial = self._trial(call, facts, self._apply(call))
        with FitStart(trial, longest_seconds=math.inf) as start:
            found = trial.run_without_writers(lambda: run_updates(trial, given_weights=live), start.require)
        return dict(found.model_dump(mode="json"))

    def _trial(self, call: FitCall, facts: DataFacts, change: Change | None) -> TrialFit:
        options = cast("FitOptions", self.job.options)
        return TrialFit(call, facts, change, self.backend, options, self.channel.phase, self.guard)


def _change(job: Job) -> Change | None:
    if job.config is None or job.baseline is None:
        return None
    return Change(job.baseline, job.config, job.options.get("padding"))


def _files_of(guard: WriteGuard) -> dict[str, list[str]]:
    """Return the files that the script wrote before its fit, as an `Observation` names them."""
    before = guard.before_fit
    return {
        "files_written": [path for path, put_back in before.items() if not put_back],
        "files_put_back": [path for path, put_back in before.items() if put_back],
    }


def _synthetic_facts(batch_size: int, shapes: Mapping[str, Sequence[int]]) -> DataFacts:
    return DataFacts("synthetic", None, batch_size, None, explicit_steps=False, input_shapes=shapes)


def _classified(job: Job, error: BaseException) -> tuple[FailureKind, str]:
    """Return the kind and the message of a failure. The script's own configuration is never UNSUPPORTED."""
    message = _message_of(error)
    if isinstance(error, SystemExit):
        message = f"the training called sys.exit({error.code!r}) before it was measured"
    if isinstance(error, NonFiniteLoss):
        return FailureKind.NAN, str(error)
    if backends.get(job.backend).is_out_of_memory(error):
        return FailureKind.OOM, message
    if _raised_by_data(error):
        return FailureKind.DATA, message
    return (FailureKind.UNSUPPORTED if _changes(job) else FailureKind.CRASH), message


def _changes(job: Job) -> bool:
    """Return whether a job runs another configuration than the script's own, or compiles it for other hardware."""
    return job.config is not None and (job.kind is JobKind.LOWER or job.config != job.baseline)


def _fail_if_disk_is_full(channel: Channel, error: BaseException) -> None:
    """End the job as tryable again if a disk is full, which does not depend on the configuration."""
    if disk_is_full(error):
        channel.failure(FailureKind.CRASH, f"a disk is full ({_message_of(error)})", outside=True)


def _message_of(error: BaseException) -> str:
    """Return why it failed in the first line, and the whole message where it has more to say."""
    first, text = reason(error), f"{type(error).__name__}: {str(error).strip()[:1000]}"
    return first if text in first else f"{first}\n{text}"


def _raised_by_data(error: BaseException) -> bool:
    """Return whether an exception was raised in the input pipeline rather than in the model."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    adapters = ("data_adapters", "torch/utils/data/")
    inside = [name for name in files if any(one in name for one in adapters) or name in _INPUT_MODULES]
    return bool(inside) and not any(name.endswith("layers/layer.py") for name in files)
