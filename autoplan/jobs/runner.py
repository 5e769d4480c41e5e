"""Runs jobs (observe, trace, measure, compile ...) for one source on one cluster, each in its own worker process.

Each job runs in a process of its own with a time limit and a memory limit. Answers are values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

from autoplan import formatting
from autoplan.errors import (
    NoFeasibleConfiguration,
    NothingMeasured,
    OutputError,
    SourceError,
    WorkloadError,
)
from autoplan.jobs.answers import before_compiling, compiler_answer, too_large_to_start, value_of
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import Job, JobKind, JobResult, NumericsRun, Observation, Options, SplitProbe
from autoplan.machine import compiler_packages, tempdirs, this_machine
from autoplan.machine.tempdirs import LockedFolder
from autoplan.plan.fields import Compared
from autoplan.plan.records import CompilerEvidence, Failure, FailureKind, Measurement, Outcome
from autoplan.sources.source import SourceSpec
from cost_models.config import Affects, Layout, Mesh, TrainConfig
from cost_models.estimate import Estimate
from cost_models.execution import platform_of
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.compile_targets import compiler_target
from cost_models.hardware.platform import TargetPlatform
from cost_models.workload.serialization import workload_from_dict
from cost_models.workload.workload import Workload

TRACED_ON = "jax"
"""The backend on which training steps are analysed, whatever they run on."""
FLOAT32_BYTES = 4
LOOK_SECONDS = 600.0
"""Limit of a job that only looks (observe, trace): what the script does before fit is in it."""
COMPILE_SECONDS = 900.0
"""Limit of one question to a compiler."""
COMPILER_SHARE = 0.8
"""Share of this machine's memory that compilers may take, all together."""
_CORES_FOR_TWO = 4
SHORTEST_LIMIT_SECONDS = 60.0
LONGEST_LIMIT_SECONDS = 1800.0
SHORTEST_STEP_SECONDS = 1.0
PATIENCE = 6.0
"""A trial may take this many times what the baseline's took."""


class Runs(Protocol):
    """The part of `jobs.client.Client` that a runner uses."""

    def run(
        self,
        job: Job,
        *,
        time_limit_seconds: float,
        memory_limit_bytes: int | None = None,
        log: Path | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> JobResult:
        """Run one job in a process of its own."""
        ...


def _silent(text: str) -> None:
    """Show nothing."""


def compilers_at_once() -> int:
    """Return how many compilers run at the same time: each takes several cores and gigabytes."""
    return 2 if this_machine.cpu_count() >= _CORES_FOR_TWO else 1


def replaced_once(run: Callable[[], JobResult], notify: Callable[[str], None] = _silent) -> JobResult:
    """Run a job, and once more where its process was ended from outside, which is no answer."""
    first = run()
    if first.failure is None or not first.failure.outside:
        return first
    notify(f"{first.failure.message}; it is tried once more")
    second = run()
    if second.failure is None or not second.failure.outside:
        return second
    message = f"{second.failure.message}; the first try ended from outside too"
    return replace(second, failure=second.failure.model_copy(update={"message": message}))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for files of jobs, removed at the end of the block. OutputError where it cannot be made."""
    try:
        tempdirs.remove_abandoned()
        folder = LockedFolder()
    except OSError as error:
        raise OutputError(
            f"no temporary folder can be made: {error.strerror}; make room, or set TMPDIR to another folder"
        ) from None
    try:
        yield folder.path
    finally:
        folder.remove()


@dataclass(frozen=True)
class JobRunner:
    """Runs the jobs of one tuning: its source, its cluster and its limits.

    padding    what a probe found of rows of weight zero
    logs       the folder of the jobs' output; None: it is not kept
    scratch    where each job gets an empty working directory; None: it runs where the source expects to
    tracer     workers on JAX, which trace whatever the training runs on; None where JAX is not installed
    others     runners of the same source on other backends, by backend, where the backend itself is tuned
    traced     traces so far; runners of one source on several backends share them
    writers    callbacks that trials have seen write, by position, with what they do; later trials leave them out
    began      when the tuning began, in seconds since the epoch: older files are the user's
    batches    options of every job that name the usual and the largest batch, once an observation found that they
               differ; shared like `traced`
    notify     takes what a user should know of a job while it runs
    """

    client: Runs
    source: SourceSpec
    backend: str
    cluster: Cluster
    clock: Clock
    logs: Path | None = None
    baseline: TrainConfig | None = None
    padding: Compared | None = None
    scratch: Path | None = None
    limit_seconds: float = LONGEST_LIMIT_SECONDS
    tracer: Runs | None = None
    others: Mapping[str, JobRunner] = field(default_factory=dict)
    traced: dict[TrainConfig, list[tuple[Observation, Workload]]] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    batches: dict[str, Any] = field(default_factory=dict)
    notify: Callable[[str], None] = _silent

    def of(self, config: TrainConfig) -> JobRunner:
        """Return the runner of a configuration's backend, with this runner's limits."""
        other = self.others.get(config.backend)
        return self if other is None else other.with_(logs=self.logs, limit_seconds=self.limit_seconds)

    def with_(self, **changes: Any) -> JobRunner:
        """Return a copy with other fields."""
        return replace(self, **changes)

    def observe(self, *, abstract: bool = False) -> Observation:
        """Observe the chosen fit: its data, its model and its own configuration.

        abstract  without making the model's weights, where its code lets that be
        SourceError when the source fails, never fits, or takes too long to reach its fit; NoFeasibleConfiguration when
        memory runs out on the way there.
        """
        result = (
            self._look_without_weights(JobKind.OBSERVE, None) if abstract else self._look(JobKind.OBSERVE, None, {})
        )
        if result.failure is not None and result.failure.out_of_memory:
            raise NoFeasibleConfiguration(too_large_to_start(result.failure, self._what_is_too_large()))
        found = Observation.model_validate(value_of(result))
        # A live model's fixed knobs and assumptions are known without asking a worker.
        known = {"held": {**found.held, **self.source.held}, "notes": [*found.notes, *self.source.notes]}
        if found.batches is not None and found.batches.differ:
            seen = found.batches
            self.batches.update(usual_batch=seen.common, largest_batch=seen.largest, mean_rows=seen.mean_rows)
        return found.model_copy(update=known)

    def _what_is_too_large(self) -> str:
        """Return a description of the source's weights from a build without values; "" where that is not possible."""
        try:
            result = self._tracing()._look(JobKind.OBSERVE, None, {"abstract": True})
        except (NothingMeasured, SourceError, WorkloadError):
            return ""
        if result.value is not None:
            parameters = Observation.model_validate(result.value).parameters
            size = formatting.size(parameters * FLOAT32_BYTES)
            return f"; without values for its {parameters:,} parameters, which take {size} (analytic), it does not"
        if result.failure is not None and result.failure.out_of_memory:
            return "; the weights alone do not cause it, because it also happens while they have no values"
        return ""

    def trace(
        self, config: TrainConfig, platform: TargetPlatform | None = None
    ) -> tuple[Observation, Workload] | Failure:
        """Trace the training step under `config` as a Workload.

        platform  the platform that Keras sees meanwhile; None: that of this runner's cluster

        First without making its weights; some code looks at its weights while it builds, and then they are made.
        A trace for another platform is reused where Keras asked nothing that this platform answers differently.
        WorkloadError where JAX is not installed.
        """
        platform = platform or platform_of(config, self.cluster)
        known = self.traced.setdefault(config.reduced_to(Affects.OPERATIONS | Affects.SIZES), [])
        for answer in known:
            if platform.gives(answer[1].answers):
                return answer
        result = self._tracing()._look_without_weights(JobKind.TRACE, config, {"platform": platform.to_dict()})
        if result.failure is not None:
            return result.failure
        value = value_of(result)
        answer = Observation.model_validate(value["observation"]), workload_from_dict(value["workload"])
        known.append(answer)
        return answer

    def _tracing(self) -> JobRunner:
        """Return a runner whose workers are on JAX."""
        if self.backend == TRACED_ON:
            return self
        if self.tracer is None:
            raise WorkloadError(
                "the training step is analysed by tracing it on JAX, which is not installed here; "
                "pip install 'autoplan[jax]' to have estimates"
            )
        return self.with_(client=self.tracer, backend=TRACED_ON)

    def probe_split(
        self, config: TrainConfig, *, options: Options, limit_seconds: float, budget_share: float
    ) -> SplitProbe | Failure:
        """Run a few micro-steps under `config`, and return what they show of updates that are split or padded.

        budget_share  share of the time that is left of the budget that it may take
        """
        left = self.clock.left()
        seconds = limit_seconds if left is None else max(SHORTEST_STEP_SECONDS, min(limit_seconds, budget_share * left))
        result = self._ask(JobKind.SPLIT, config, options, JobKind.SPLIT.value, seconds)
        if result.value is None:
            return result.failure or Failure(kind=FailureKind.CRASH, message="it ended without a result")
        return SplitProbe.model_validate(result.value)

    def measure(
        self,
        config: TrainConfig,
        name: str,
        *,
        options: Options | None = None,
        on_phase: Callable[[str], None] | None = None,
        patience: float = 1.0,
    ) -> Outcome:
        """Run the chosen fit for a while under `config`. `name` names the log; `patience` stretches the time limit."""
        seconds = self.limit_seconds * patience
        result = self.of(config)._ask(JobKind.MEASURE, config, options or {}, name, seconds, on_phase)
        if result.failure is not None:
            return result.failure
        measured = Measurement.model_validate(value_of(result))
        self.writers.update(measured.writers)
        return measured

    def validate(self, config: TrainConfig, *, rows: int | None = None) -> Failure | None:
        """Run one batch of the fit's validation under `config`, after a micro-step. Returns what ended it, if it fails.

        rows  rows at once, where the data are arrays; None: those of the script
        """
        options = {} if rows is None else {"validation_rows": rows}
        jobs = self.of(config)
        result = jobs._ask(JobKind.VALIDATE, config, options, "validate", self.limit_seconds)
        if result.failure is not None:
            return result.failure
        # The peak may come after the last look at the process, so the process reports it, too.
        limit, held = jobs._memory_limit(JobKind.VALIDATE), value_of(result).get("held_bytes")
        if limit is None or held is None or held <= limit:
            return None
        message = f"used {formatting.size(held)} of the allowed {formatting.size(limit)} in phase validation"
        return Failure(kind=FailureKind.OOM, message=message, held_bytes=held)

    def numerics(
        self, config: TrainConfig, *, seeds: Sequence[int], updates: int, options: Options | None = None
    ) -> NumericsRun | Failure:
        """Run a few updates with the first of these seeds, and with as many others as one process can run."""
        options = {"updates": updates, "seeds": list(seeds), **(options or {})}
        result = self.of(config)._ask(JobKind.NUMERICS, config, options, "numerics", self.limit_seconds)
        return result.failure or NumericsRun.model_validate(value_of(result))

    def compile(
        self,
        config: TrainConfig,
        *,
        name: str = "compile",
        analytic: Estimate | None = None,
        limit_seconds: float = COMPILE_SECONDS,
        on_phase: Callable[[str], None] | None = None,
    ) -> CompilerEvidence | Failure:
        """Compile the training program of `config` for the cluster with its real compiler, with no device present.

        analytic  the estimate of `config`, for what no compiler knows: the model's FLOPs, and batches that `fit` holds
                  beside the program's own; None: MFU is not known, and no batches are added

        A program that does not fit is a Failure with the compiler's figures.
        HardwareError where nothing can be compiled for this cluster here; WorkloadError where JAX is not installed.
        """
        target = compiler_target(self.cluster)
        versions = compiler_packages.versions(target)
        # The mesh is the compiler's; the model itself is built as it is on one device.
        program = config.reduced_to(Affects.PROGRAM | Affects.SIZES).with_(backend=TRACED_ON)
        alone = program.with_(mesh=Mesh(), layout=Layout())
        options = {
            "target": target.to_dict(),
            "cluster": self.cluster.to_dict(),
            "lowered": program.to_dict(),
            "versions": versions,
            "model_flops": None if analytic is None else analytic.model_flops,
            "abstract": True,
        }
        jobs = self._tracing()
        result = jobs._ask(JobKind.LOWER, alone, options, name, limit_seconds, on_phase)
        if before_compiling(result):  # some code looks at the values of its weights while it builds
            again = jobs._ask(JobKind.LOWER, alone, {**options, "abstract": False}, name, limit_seconds, on_phase)
            result = result if again.failure is not None else again
        answer = compiler_answer(result)
        if isinstance(answer, Failure) or analytic is None or not analytic.memory.other_batches:
            return answer
        return answer.beside(analytic.memory.other_batches)

    def patient(self, wall_seconds: float) -> JobRunner:
        """Return a runner with time limits that follow from how long the baseline took."""
        limit = min(LONGEST_LIMIT_SECONDS, max(SHORTEST_LIMIT_SECONDS, PATIENCE * wall_seconds))
        return self.with_(limit_seconds=limit)

    def _look_without_weights(
        self, kind: JobKind, config: TrainConfig | None, options: Options | None = None
    ) -> JobResult:
        """Observe without making weights; with weights where the source reads their values while it builds."""
        options = options or {}
        try:
            result = self._look(kind, config, {**options, "abstract": True})
        except SourceError:
            return self._look(kind, config, options)
        waited = result.failure is not None and result.failure.kind is FailureKind.TIMEOUT
        return result if result.failure is None or waited else self._look(kind, config, options)

    def _look(self, kind: JobKind, config: TrainConfig | None, options: Options) -> JobResult:
        result = self._ask(kind, config, options, kind.value, LOOK_SECONDS)
        if result.failure is not None and self.cut_short(result.failure):
            raise NothingMeasured(
                f"the budget of {self.clock.budget_seconds:.0f} s ended while the training was inspected, before "
                "tuning began; give a larger --budget"
            )
        return result

    def _ask(
        self,
        kind: JobKind,
        config: TrainConfig | None,
        options: Options,
        log: str,
        seconds: float,
        on_phase: Callable[[str], None] | None = None,
    ) -> JobResult:
        """Run one job within the limits; a process that is ended from outside is replaced once."""

        def run() -> JobResult:
            return self.client.run(
                self._job(kind, config, options),
                time_limit_seconds=self._within_budget(seconds),
                memory_limit_bytes=self._memory_limit(kind),
                log=None if self.logs is None else self.logs / f"{log}.log",
                on_phase=on_phase,
            )

        return replaced_once(run, self.notify)

    def _job(self, kind: JobKind, config: TrainConfig | None, options: Options) -> Job:
        return Job(
            kind=kind,
            source=self.source,
            backend=self.backend,
            config=config,
            baseline=self.baseline,
            devices=self.cluster.devices if self.cluster.simulated else None,
            options={**self._folders(kind), **self._on_files(), **self._found(), **self.batches, **options},
        )

    def _on_files(self) -> Options:
        """Return which files are the user's, and which callbacks are known to write."""
        known = {"left_out": self.writers} if self.writers else {}
        return {"tuning_began": self.began, **known}

    def _found(self) -> Options:
        """Return what a probe found that a trial depends on."""
        return {} if self.padding is None else {"padding": self.padding}

    def _folders(self, kind: JobKind) -> dict[str, str]:
        """Return the cache of compiled programs, and an empty working directory where one is wanted."""
        folders = {}
        if self.logs is not None and kind is not JobKind.LOWER:  # no device could load what a cache keeps
            folders["cache_dir"] = str(self.logs.absolute() / "compilation_cache")
        if self.scratch is not None:
            try:
                folders["scratch"] = mkdtemp(dir=self.scratch)
            except OSError as error:
                raise OutputError(
                    f"no working directory for a trial can be made in {self.scratch}: {error.strerror}; "
                    "make room, or set TMPDIR to another folder"
                ) from None
        return folders

    def usable_bytes(self) -> int:
        """Return the memory that a training may take: all of a CPU's, else that of one device."""
        chip = self.cluster.chip
        return chip.usable_memory_bytes * self.cluster.devices if chip.kind == "cpu" else chip.usable_memory_bytes

    def cut_short(self, failure: Failure) -> bool:
        """Return whether a timeout was caused by the budget, and so says nothing about the configuration."""
        return failure.kind is FailureKind.TIMEOUT and not self.clock.allows(SHORTEST_STEP_SECONDS)

    def _within_budget(self, seconds: float) -> float:
        left = self.clock.left()
        return seconds if left is None else max(SHORTEST_STEP_SECONDS, min(seconds, left))

    def _memory_limit(self, kind: JobKind) -> int | None:
        """Return the memory limit of a job. Only a CPU's memory is watched; other devices enforce their own limit.

        The limit of the training does not apply to a trace, which is no part of the training.
        """
        if kind is JobKind.LOWER:
            return int(this_machine.memory_bytes() * COMPILER_SHARE / compilers_at_once())
        if kind is JobKind.SPLIT and not self.cluster.local:
            return int(this_machine.memory_bytes() * COMPILER_SHARE)
        on_this_cpu = self.cluster.local and self.cluster.chip.kind == "cpu"
        return self.usable_bytes() if on_this_cpu and kind is not JobKind.TRACE else None
