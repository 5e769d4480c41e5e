"""One job in this process: settings, the source run up to its fit, the question answered there, the way out."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import keras

from autoplan.errors import AutoplanError, HardwareError
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.machine import processes
from autoplan.plan.records import FailureKind
from autoplan.runtime import backends
from autoplan.runtime.apply import Change, ProcessSettings, settle_model
from autoplan.runtime.data import data_facts, dataloader_batches, rebatch, regroup, sample
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.fit import ensure_built
from autoplan.runtime.intercept import FitCall, Interception, one_micro_step
from autoplan.runtime.timing.fit_timing import NotFinite
from autoplan.sources.source import SourceSpec
from autoplan.worker import run_to_fit
from autoplan.worker.channel import Channel, disk_is_full
from autoplan.worker.custom_loops import PATIENCE_SECONDS, LoopWatch
from autoplan.worker.losses import numerics
from autoplan.worker.measure import measure
from autoplan.worker.observe import observe
from autoplan.worker.seeds import BASE_SEED, in_another_order, move_random_seed
from cost_models.workload.serialization import workload_to_dict

_LOOKS = (JobKind.OBSERVE, JobKind.TRACE)
_TRAINS_NOTHING = (*_LOOKS, JobKind.LOWER)
_LONGEST_FOLDER = 64
_READ_DATA = frozenset(module.__file__ for module in (rebatch, regroup, dataloader_batches, sample))
"""The modules through which batches are read: an exception that came up through one of them is of the data."""


def run_job(job: Job, channel: Channel) -> None:
    """Answer one job and leave the process. Never returns."""
    os.environ["AUTOPLAN_TRIAL"] = "1"
    os.environ["MPLBACKEND"] = "Agg"  # a window with a figure would wait, in every trial, for somebody to close it
    _keep_temporary_files_together(job.options.get("temporary"))
    channel.started()
    try:
        Session(job, channel).run()
    except AutoplanError as error:
        cause = error.__cause__
        if cause is not None:
            channel.log(cause)
        if isinstance(cause, Exception) and backends.get(job.backend).is_out_of_memory(cause):
            channel.failure(FailureKind.OOM, f"{type(cause).__name__}: {cause}")
        if job.kind in _LOOKS or job.kind is JobKind.PROBE:
            channel.error(error)
        if job.kind is JobKind.LOWER and isinstance(error, HardwareError):
            channel.error(error)  # no configuration will do on hardware that cannot be compiled for
        _leave_if_disk_is_full(channel, error)
        channel.failure(FailureKind.UNSUPPORTED if job.config else FailureKind.CRASH, str(error))
    except BaseException as error:  # noqa: BLE001 -- whatever ends a trial is a value to its study
        channel.log(error)
        cause = error.__cause__ if isinstance(error, run_to_fit.InsideFit) and error.__cause__ is not None else error
        _leave_if_disk_is_full(channel, cause)
        channel.failure(*_classified(job, cause))


def _keep_temporary_files_together(folder: str | None) -> None:
    """Where the client removes them: AutoGraph's code and the sockets of loading processes outlive a job's end.

    A socket's name is at most 107 bytes long, those of `multiprocessing` need some 40 of them.
    """
    if folder is not None and len(folder) <= _LONGEST_FOLDER:
        os.environ["TMPDIR"] = tempfile.tempdir = folder


class Session:
    """The state of one job: which backend, which configuration, which fit is awaited."""

    def __init__(self, job: Job, channel: Channel) -> None:
        self.job, self.channel = job, channel
        self.backend = backends.get(job.backend)
        self.change = _change(job)
        settings = ProcessSettings(self.change, self.backend) if self.change is not None else None
        self.interception = Interception(self._on_fit, settings)
        self._loops: LoopWatch | None = None

    def run(self) -> None:
        """Do what the job asks; leaves the process on success."""
        self._prepare_process()
        if self.job.kind is JobKind.PROBE:
            from autoplan.worker.probe import probe

            self.channel.phase("probe")
            self.channel.result(probe(self.job.backend))
        self.channel.phase("setup")
        with self._variables():
            self.interception.install()
            source = self.job.source
            if source is None:
                raise AutoplanError(f"a {self.job.kind.value} job needs a source")
            with self._loop_watch(source):
                run_to_fit.run_to_fit(source, self._on_builder, directory=self.job.options.get("scratch"))
        raise run_to_fit.never_fits(source, self.interception.seen.fits)

    def _loop_watch(self, source: SourceSpec) -> AbstractContextManager[Any]:
        """Ends a job that only looks where a script trains in a loop of its own, which may take days."""
        if self.job.kind not in _LOOKS or source.kind != "script":
            return nullcontext()
        patience_seconds = float(self.job.options.get("loop_patience_seconds", PATIENCE_SECONDS))
        self._loops = LoopWatch(
            source, lambda: self.channel.error(run_to_fit.never_fits(source, fits=0)), patience_seconds
        )
        return self._loops

    def _prepare_process(self) -> None:
        options = self.job.options
        if self.change is not None and self.change.wanted.keep_freed_memory and not processes.keep_freed_memory():
            raise AutoplanError(processes.NOT_KEPT)
        if self.job.kind is JobKind.LOWER:
            from autoplan.worker import compile_job

            compile_job.prepare(options)
        elif self.job.devices is not None:
            self.backend.configure_devices(self.job.devices)
        if options.get("cache_dir"):
            self.backend.enable_compilation_cache(Path(options["cache_dir"]))
        if self.job.kind is JobKind.NUMERICS:
            move_random_seed(int(options.get("seed", BASE_SEED)))
        elif options.get("seed") is not None:
            keras.utils.set_random_seed(options["seed"])

    def _abstract(self) -> bool:
        """Whether variables are to hold no values: enough for a job that only looks, where the backend lets them."""
        looks = self.job.kind in _TRAINS_NOTHING and bool(self.job.options.get("abstract"))
        return looks and self.backend.name == "jax"

    def _variables(self) -> AbstractContextManager[None]:
        if self._abstract():
            from autoplan.worker.trace.abstract_variables import abstract_variables

            return abstract_variables()
        return nullcontext()

    def _on_builder(self, model: Any, arguments: dict[str, Any]) -> None:
        """A builder's model: give it data where it has none, and let it fit."""
        batch_size = int(self.job.options.get("batch_size") or run_to_fit.SYNTHETIC_BATCH)
        if "x" in arguments:
            model.fit(**arguments)
        elif self.job.kind in _TRAINS_NOTHING:
            run_to_fit.check_fit(self.job.source, 1, model, arguments)
            self._answer(FitCall(1, model, {"batch_size": batch_size}, type(model).fit), _synthetic_facts(batch_size))
        else:
            timed = self.change if self.job.kind is JobKind.MEASURE else None
            wanted = None if timed is None else timed.wanted.batch
            model.fit(**arguments, **run_to_fit.synthetic_arguments(model, batch_size, wanted))

    def _on_fit(self, call: FitCall) -> Any:
        """Called in place of each `fit` of the source."""
        if self._loops is not None:
            self._loops.cancel()
        source = self.job.source
        wanted = source.fit_index if source is not None else 1
        run_to_fit.check_fit(source, call.index, call.model, call.arguments)
        if call.index < wanted:
            self.interception.checkpoints.note(call.model, call.arguments.get("callbacks"))
            return keras.callbacks.History() if self._abstract() else one_micro_step(call)
        try:
            call.arguments = sample.lookable(call.arguments)
            self._answer(call, self._facts(call))
        except (AutoplanError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise run_to_fit.InsideFit from error

    def _facts(self, call: FitCall) -> DataFacts:
        try:
            facts = data_facts.describe(call.arguments)
        except StopIteration:  # there is no first batch to be looked at
            raise run_to_fit.no_samples(self.job.source, call.index) from None
        if facts.samples == 0:
            raise run_to_fit.no_samples(self.job.source, call.index)
        return facts

    def _answer(self, call: FitCall, facts: DataFacts) -> None:
        answers: dict[JobKind, Callable[[FitCall, DataFacts], dict[str, Any]]] = {
            JobKind.OBSERVE: self._observe,
            JobKind.TRACE: self._trace,
            JobKind.MEASURE: self._measure,
            JobKind.NUMERICS: self._numerics,
            JobKind.LOWER: self._lower,
        }
        self.channel.result(answers[self.job.kind](call, facts))

    def _observe(self, call: FitCall, facts: DataFacts) -> dict[str, Any]:
        plain: dict[str, Any] = self._observed(call, facts).model_dump(mode="json")
        return plain

    def _observed(self, call: FitCall, facts: DataFacts) -> Observation:
        found = observe(call, facts, self.interception.seen, self.backend)
        # Without values of its variables the process says nothing of what a training holds.
        held = None if self._abstract() else processes.alone_bytes(os.getpid())
        return found.model_copy(update={"process_bytes": held})

    def _trace(self, call: FitCall, facts: DataFacts) -> dict[str, Any]:
        from autoplan.worker.trace.job import trace_near

        observation = self._observed(call, facts)
        self._settle(call)
        self.channel.phase("trace")
        built_with = self.job.config or observation.config
        workload = trace_near(call.model, call.arguments, facts, built_with.batch.local, built_with)
        return {"observation": observation.model_dump(mode="json"), "workload": workload_to_dict(workload)}

    def _lower(self, call: FitCall, facts: DataFacts) -> dict[str, Any]:
        from autoplan.worker import compile_job

        self._settle(call)
        return compile_job.answer(call.model, call.arguments, facts, self.job.options, self.channel.phase)

    def _settle(self, call: FitCall) -> Change | None:
        if self.change is not None:
            settle_model(call.model, self.change)
        return self.change

    def _measure(self, call: FitCall, facts: DataFacts) -> dict[str, Any]:
        setup_seconds = time.monotonic() - self.interception.seen.started_at
        # TensorFlow cannot compile a micro-step in which the model still makes its variables.
        ensure_built(call.model, call.arguments, facts)
        change = self._settle(call)
        simulated = self.job.devices is not None and self.job.devices > 1
        found = measure(
            call, facts, change, self.backend, self.job.options, self.channel.phase, setup_seconds, simulated=simulated
        )
        return found.model_dump(mode="json")

    def _numerics(self, call: FitCall, facts: DataFacts) -> dict[str, Any]:
        self.channel.phase("numerics")
        if self.job.source is not None and self.job.source.kind == "instance":
            seed = int(self.job.options.get("seed", BASE_SEED))
            call.arguments = in_another_order(call.arguments, facts, seed)
        return numerics(call, facts, self._settle(call), self.job.options)


def _change(job: Job) -> Change | None:
    if job.config is None or job.baseline is None:
        return None
    return Change(job.baseline, job.config)


def _synthetic_facts(batch_size: int) -> DataFacts:
    return DataFacts("synthetic", None, batch_size, None, explicit_steps=False)


def _classified(job: Job, error: BaseException) -> tuple[FailureKind, str]:
    """What kind of failure an exception is. The script's own way cannot be unsupported: then the script failed."""
    message = _told(error)
    if isinstance(error, SystemExit):
        message = f"the training left by sys.exit({error.code!r}) before it was measured"
    if isinstance(error, NotFinite):
        return FailureKind.NAN, str(error)
    if backends.get(job.backend).is_out_of_memory(error):
        return FailureKind.OOM, message
    if _raised_by_data(error):
        return FailureKind.DATA, message
    changes = job.config is not None and job.config != job.baseline
    return (FailureKind.UNSUPPORTED if changes else FailureKind.CRASH), message


def _leave_if_disk_is_full(channel: Channel, error: BaseException) -> None:
    """A full disk says nothing of the configuration."""
    if disk_is_full(error):
        channel.failure(FailureKind.CRASH, f"there is no room left on a disk ({_told(error)})", outside=True)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:1000]}"


def _raised_by_data(error: BaseException) -> bool:
    """Whether the exception came up through the input path rather than through the model."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    adapters = ("data_adapters", "torch/utils/data/")
    inside = [name for name in files if any(one in name for one in adapters) or name in _READ_DATA]
    return bool(inside) and not any(name.endswith("layers/layer.py") for name in files)
