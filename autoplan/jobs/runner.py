"""The planner's workbench: one source on one cluster, and every question to a worker process about it.

Each question is a job in a process of its own with a time limit and a memory limit; answers are values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

from autoplan import formatting
from autoplan.errors import (
    FAILED_BY_ITSELF,
    ConfigError,
    NoFeasibleConfiguration,
    OutputError,
    ScriptFailed,
    SourceError,
    WorkerError,
    WorkloadError,
)
from autoplan.jobs.client import Job, JobKind, JobResult, Observation, SourceSpec, log_tail
from autoplan.machine import compiler_packages, local_hardware, processes, tempdirs
from autoplan.machine.tempdirs import HeldFolder
from autoplan.plan.records import CompilerEvidence, Failure, FailureKind, Measurement, Outcome
from cost_models.config import Affects, Layout, Mesh, TrainConfig
from cost_models.errors import AutoplanError
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.compile_targets import compiler_target
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
LINES_SHOWN = 10
PATIENCE = 6.0
"""A trial may take this many times what the baseline's took."""


class Runs(Protocol):
    """What the bench needs of `jobs.Client`."""

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


@dataclass(frozen=True)
class Clock:
    """The budget in seconds from `started_at` on. None: no end."""

    budget_seconds: float | None
    started_at: float

    @classmethod
    def start(cls, budget_seconds: float | None) -> Clock:
        """The budget from now on."""
        return cls(budget_seconds, time.monotonic())

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def left(self) -> float | None:
        """Seconds left, never below zero."""
        return None if self.budget_seconds is None else max(0.0, self.budget_seconds - self.elapsed())

    def allows(self, seconds: float) -> bool:
        """Whether so much time is left."""
        left = self.left()
        return left is None or left >= seconds


def _silent(text: str) -> None:
    """Nobody is told."""


def compilers_at_once() -> int:
    """Compilers that run side by side: each takes several cores, and gigabytes."""
    return 2 if processes.processors() >= _CORES_FOR_TWO else 1


def replaced_once(run: Callable[[], JobResult], tell: Callable[[str], None] = _silent) -> JobResult:
    """Run a job, and once more where its process was ended from outside: that says nothing of what was asked."""
    first = run()
    if first.failure is None or not first.failure.outside:
        return first
    tell(f"{first.failure.message}; it is tried once more")
    second = run()
    if second.failure is None or not second.failure.outside:
        return second
    message = f"{second.failure.message}; the first try ended from outside too"
    return replace(second, failure=second.failure.model_copy(update={"message": message}))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for what jobs leave behind, gone at the end of the block. OutputError where none can be made."""
    try:
        tempdirs.remove_abandoned()
        folder = HeldFolder()
    except OSError as error:
        raise OutputError(
            f"no temporary folder can be made: {error.strerror}; make room, or set TMPDIR to another folder"
        ) from None
    try:
        yield folder.path
    finally:
        folder.remove()


@dataclass(frozen=True)
class Bench:
    """Source, cluster and limits of one tuning.

    logs       the folder of the jobs' output; None: it is not kept
    scratch    where each job gets an empty working directory; None: it runs where the source expects to
    tracer     workers on JAX, which trace whatever the training runs on; None where JAX is not installed
    others     the same source on other backends, where the backend itself is tuned: who answers for which
    traced     what was traced before; benches of one source on several backends share it
    tell       is told what a person should know of a job while it runs
    """

    client: Runs
    source: SourceSpec
    backend: str
    cluster: Cluster
    clock: Clock
    logs: Path | None = None
    baseline: TrainConfig | None = None
    scratch: Path | None = None
    limit_seconds: float = LONGEST_LIMIT_SECONDS
    tracer: Runs | None = None
    others: Mapping[str, Bench] = field(default_factory=dict)
    traced: dict[TrainConfig, tuple[Observation, Workload]] = field(default_factory=dict)
    tell: Callable[[str], None] = _silent

    def of(self, config: TrainConfig) -> Bench:
        """The bench of a configuration's backend, under this one's limits."""
        other = self.others.get(config.backend)
        return self if other is None else other.with_(logs=self.logs, limit_seconds=self.limit_seconds)

    def with_(self, **changes: Any) -> Bench:
        """A copy with other fields."""
        return replace(self, **changes)

    def observe(self, *, abstract: bool = False) -> Observation:
        """What the chosen fit says about itself.

        abstract  without making the model's weights, where its code lets that be
        SourceError when the source fails, never fits, or takes too long to reach its fit; NoFeasibleConfiguration when
        memory runs out on the way there.
        """
        result = (
            self._look_without_weights(JobKind.OBSERVE, None) if abstract else self._look(JobKind.OBSERVE, None, {})
        )
        if result.failure is not None and result.failure.out_of_memory:
            raise NoFeasibleConfiguration(_too_large_to_start(result.failure, self._what_is_too_large()))
        found = Observation.model_validate(_value(result))
        # What a live model does not let be turned, and what was assumed of it, is known without asking a worker.
        known = {"held": {**found.held, **self.source.held}, "notes": [*found.notes, *self.source.notes]}
        return found.model_copy(update=known)

    def _what_is_too_large(self) -> str:
        """Weights, or what else the source makes, as a look without values for them tells; "" when it cannot tell."""
        try:
            result = self._tracing()._look(JobKind.OBSERVE, None, {"abstract": True})
        except (ConfigError, SourceError, WorkloadError):
            return ""
        if result.value is not None:
            parameters = Observation.model_validate(result.value).parameters
            size = formatting.size(parameters * FLOAT32_BYTES)
            return f"; it gets there without values for its {parameters:,} parameters, which are {size} (analytic)"
        if result.failure is not None and result.failure.out_of_memory:
            return "; it does so without values for its weights too, so it is what the source makes besides them"
        return ""

    def trace(self, config: TrainConfig | None) -> tuple[Observation, Workload] | Failure:
        """The training step under `config` as a Workload; None: as the source has it.

        First without making its weights; some code looks at its weights while it builds, and then they are made.
        WorkloadError where JAX is not installed.
        """
        key = None if config is None else config.reduced_to(Affects.OPERATIONS | Affects.SIZES)
        if key is not None and key in self.traced:
            return self.traced[key]
        result = self._tracing()._look_without_weights(JobKind.TRACE, config)
        if result.failure is not None:
            return result.failure
        value = _value(result)
        answer = Observation.model_validate(value["observation"]), workload_from_dict(value["workload"])
        if key is not None:
            self.traced[key] = answer
        return answer

    def _tracing(self) -> Bench:
        """This bench with workers on JAX."""
        if self.backend == TRACED_ON:
            return self
        if self.tracer is None:
            raise WorkloadError(
                "the training step is analysed by tracing it on JAX, which is not installed here; "
                "pip install 'autoplan[jax]' to have estimates"
            )
        return self.with_(client=self.tracer, backend=TRACED_ON)

    def measure(
        self,
        config: TrainConfig,
        name: str,
        *,
        options: dict[str, Any] | None = None,
        on_phase: Callable[[str], None] | None = None,
        patience: float = 1.0,
    ) -> Outcome:
        """Run the chosen fit for a while under `config`. `name` names the log; `patience` stretches the time limit."""
        seconds = self.limit_seconds * patience
        result = self.of(config)._ask(JobKind.MEASURE, config, options or {}, name, seconds, on_phase)
        return result.failure or Measurement.model_validate(_value(result))

    def numerics(
        self, config: TrainConfig, *, seed: int, updates: int, options: Mapping[str, Any] | None = None
    ) -> list[float] | Failure:
        """Losses of the first updates with a seed, one an update."""
        options = {"updates": updates, "seed": seed, **(options or {})}
        result = self.of(config)._ask(JobKind.NUMERICS, config, options, "numerics", self.limit_seconds)
        return result.failure or [float(loss) for loss in _value(result)["losses"]]

    def witness(
        self,
        config: TrainConfig,
        *,
        name: str = "compile",
        model_flops: float | None = None,
        limit_seconds: float = COMPILE_SECONDS,
        on_phase: Callable[[str], None] | None = None,
    ) -> CompilerEvidence | Failure:
        """What the cluster's real compiler says of `config`, with no device present.

        model_flops  the model's own of a micro-step on one device (`Estimate.to_dict()`); None: MFU is not known

        What does not fit is a Failure with the compiler's figures. HardwareError where nothing can be compiled for this
        cluster here; WorkloadError where JAX is not installed.
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
            "model_flops": model_flops,
            "abstract": True,
        }
        bench = self._tracing()
        result = bench._ask(JobKind.LOWER, alone, options, name, limit_seconds, on_phase)
        if _before_compiling(result):  # some code looks at the values of its weights while it builds
            again = bench._ask(JobKind.LOWER, alone, {**options, "abstract": False}, name, limit_seconds, on_phase)
            result = result if again.failure is not None else again
        return _what_the_compiler_said(result)

    def patient(self, wall_seconds: float) -> Bench:
        """The same bench with time limits that follow from how long the baseline took."""
        limit = min(LONGEST_LIMIT_SECONDS, max(SHORTEST_LIMIT_SECONDS, PATIENCE * wall_seconds))
        return self.with_(limit_seconds=limit)

    def _look_without_weights(self, kind: JobKind, config: TrainConfig | None) -> JobResult:
        """Without making weights first; with them where the source's code looks at their values while it builds."""
        try:
            result = self._look(kind, config, {"abstract": True})
        except SourceError:
            return self._look(kind, config, {})
        waited = result.failure is not None and result.failure.kind is FailureKind.TIMEOUT
        return result if result.failure is None or waited else self._look(kind, config, {})

    def _look(self, kind: JobKind, config: TrainConfig | None, options: dict[str, Any]) -> JobResult:
        result = self._ask(kind, config, options, kind.value, LOOK_SECONDS)
        if result.failure is not None and self.cut_short(result.failure):
            raise ConfigError(
                f"the budget of {self.clock.budget_seconds:.0f} s was spent while the training was looked at, before "
                "anything could be planned; give more with --budget"
            )
        return result

    def _ask(
        self,
        kind: JobKind,
        config: TrainConfig | None,
        options: Mapping[str, Any],
        log: str,
        seconds: float,
        on_phase: Callable[[str], None] | None = None,
    ) -> JobResult:
        """One job within the limits; a process that is ended from outside is replaced once."""

        def run() -> JobResult:
            return self.client.run(
                self._job(kind, config, options),
                time_limit_seconds=self._within_budget(seconds),
                memory_limit_bytes=self._memory_limit(kind),
                log=None if self.logs is None else self.logs / f"{log}.log",
                on_phase=on_phase,
            )

        return replaced_once(run, self.tell)

    def _job(self, kind: JobKind, config: TrainConfig | None, options: Mapping[str, Any]) -> Job:
        return Job(
            kind=kind,
            source=self.source,
            backend=self.backend,
            config=config,
            baseline=self.baseline,
            devices=self.cluster.devices if self.cluster.simulated else None,
            options={**self._folders(kind), **options},
        )

    def _folders(self, kind: JobKind) -> dict[str, str]:
        """Where compiled programs are kept between jobs, and where a source runs that shall not write beside itself."""
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
        """What a training may hold: all of a CPU's memory, which simulated devices share; elsewhere one device's."""
        chip = self.cluster.chip
        return chip.usable_memory_bytes * self.cluster.devices if chip.kind == "cpu" else chip.usable_memory_bytes

    def cut_short(self, failure: Failure) -> bool:
        """Whether a timeout is the budget's doing, and says nothing of the configuration."""
        return failure.kind is FailureKind.TIMEOUT and not self.clock.allows(SHORTEST_STEP_SECONDS)

    def _within_budget(self, seconds: float) -> float:
        left = self.clock.left()
        return seconds if left is None else max(SHORTEST_STEP_SECONDS, min(seconds, left))

    def _memory_limit(self, kind: JobKind) -> int | None:
        """On a CPU the devices' memory is this machine's, and is watched; elsewhere the device guards its own.

        What a training may take is no limit for its analysis, which is not part of it.
        """
        if kind is JobKind.LOWER:
            return int(local_hardware.memory_bytes() * COMPILER_SHARE / compilers_at_once())
        on_this_cpu = self.cluster.local and self.cluster.chip.kind == "cpu"
        return self.usable_bytes() if on_this_cpu and kind is not JobKind.TRACE else None


def _before_compiling(result: JobResult) -> bool:
    """Whether a job failed, rather than waited too long, before its compiler was asked."""
    failure = result.failure
    return failure is not None and failure.kind is not FailureKind.TIMEOUT and "compile" not in result.phases


def _what_the_compiler_said(result: JobResult) -> CompilerEvidence | Failure:
    if result.value is None:
        failure = result.failure or Failure(kind=FailureKind.CRASH, message="it left without an answer")
        return _of_this_machine(failure) if failure.out_of_memory else failure
    refused, too_large = result.value.get("refused"), result.value.get("too_large")
    if refused is not None:
        return Failure(kind=FailureKind.UNSUPPORTED, message=refused, wall_seconds=result.wall_seconds)
    if too_large is None:
        return CompilerEvidence.model_validate(result.value["evidence"])
    return Failure(
        kind=FailureKind.COMPILE_OOM,
        message=f"the compiler says that it does not fit: {too_large['message']}",
        wall_seconds=result.wall_seconds,
        needed_bytes=too_large["needed_bytes"],
        available_bytes=too_large["available_bytes"],
    )


def _of_this_machine(failure: Failure) -> Failure:
    """Memory ran out where the compiler ran, which says nothing of the device that it compiles for."""
    message = f"compiling takes more memory than this machine has ({failure.message})"
    return failure.model_copy(update={"kind": FailureKind.CRASH, "message": message, "outside": True})


def _value(result: JobResult) -> dict[str, Any]:
    """The answer. SourceError when the process ended without one, with the last that it said."""
    if result.value is not None:
        return result.value
    failure = result.failure or Failure(kind=FailureKind.CRASH, message="it left without an answer")
    log = Path(failure.log) if failure.log else None
    said = [line for line in log_tail(log).splitlines() if line.strip()][-LINES_SHOWN:]
    output = "\n  ".join(["; the last of its output:", *said]) if said else ""
    raise SourceError(f"the source did not get to its fit ({failure.kind.value}: {failure.message}){output}")


def _too_large_to_start(failure: Failure, cause: str) -> str:
    """Memory ran out while the source made its data and built its model, which no setting of the training changes."""
    held = "" if failure.held_bytes is None else f"more than {formatting.size(failure.held_bytes)} of memory, "
    return (
        f"the training runs out of memory before its first micro-step, while it makes its data and builds its model "
        f"({failure.message}){cause}. Accumulation, another precision and rematerialization change what a micro-step "
        f"takes, and a mesh copies the weights to every device, so none of them helps here. What would fit: {held}a "
        "smaller model, or data that are read as they are needed (np.load with mmap_mode, tf.data, PyDataset)"
    )


def explain_failure(failure: Failure) -> AutoplanError:
    """A failure that nothing can be tuned around, as an error for the user.

    Code that fails before its fit did not fail when it was looked at: what is different now is that it ran before.
    """
    if FAILED_BY_ITSELF in failure.message:
        return ScriptFailed(
            f"{failure.message}\nIt got to its fit when it was first looked at, so what that run left behind may stop "
            "it now: every trial runs the source again, and --scratch gives each an empty working directory"
        )
    where = f"; its output is in {failure.log}" if failure.log else ""
    if failure.outside:
        return WorkerError(f"the training was ended from outside ({failure.message}){where}. Run again to go on")
    return SourceError(
        f"the training fails as it is ({failure.kind.value}: {failure.message}){where}. Make it run by itself, "
        "then tune it"
    )
