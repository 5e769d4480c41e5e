"""The bridge to worker processes: what is asked, what comes back, and the client that starts, limits and ends them.

A client starts one server a backend (`python -m autoplan.worker serve`), which has imported Keras and the backend and
forks a process a job. Each job has a channel of its own, a Unix socket that carries one JSON object a line:
{"event": "started", "pid"}, {"event": "phase", "name"}, {"event": "imported", "names"}, {"event": "result", "value"},
{"event": "failure", ...}, {"event": "error", "error", "message"} from the job, and {"event": "exit", "status"} from
whoever waited for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import Field, model_validator

from autoplan import errors
from autoplan.jobs import exit_status
from autoplan.jobs.exit_status import Ending, Watched
from autoplan.jobs.output import JobOutput
from autoplan.machine import processes
from autoplan.machine.tempdirs import HeldFolder
from autoplan.plan.fields import Config
from autoplan.plan.records import Failure, FailureKind, Value
from autoplan.sources.source import SourceSpec as SourceSpec  # what a job is about; its home is below this module

PRELOADABLE = ("tensorflow", "torch", "scipy", "pandas", "sklearn", "h5py")
"""What a source may import that takes seconds and starts no thread: once one job did, the server imports it for all."""
SEE_OUTPUT = "; the last of its output:"
"""Ends a message of a worker that the client completes from the job's log."""
_WATCH_SECONDS = 0.2
_LINES_SHOWN = 8
_LOG_TAIL_BYTES = 4000


class JobKind(StrEnum):
    """What a worker can be asked.

    observe   run the source up to the chosen fit; -> Observation
    trace     the same, then the training step -> {"observation": ..., "workload": ...}
    measure   run the chosen fit for a while -> Measurement
    numerics  a few updates with a seed -> losses an update
    lower     the same as trace, but what a compiler says -> {"evidence": CompilerEvidence} or {"too_large": ...}
    probe     this machine's rates -> a hardware profile
    """

    OBSERVE = "observe"
    TRACE = "trace"
    MEASURE = "measure"
    NUMERICS = "numerics"
    LOWER = "lower"
    PROBE = "probe"


class Job(Value):
    """One question to one process. `config` None means "as the script has it"."""

    kind: JobKind
    source: SourceSpec | None = None
    backend: str = "jax"
    config: Config | None = None
    baseline: Config | None = Field(None, description="the script's own configuration, once observed")
    devices: int | None = Field(None, description="simulated CPU devices; None leaves the machine as it is")
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _change_is_known(self) -> Self:
        """What is applied is what differs from the script's own: without that, nothing would be, in silence."""
        if self.config is not None and self.baseline is None:
            raise ValueError("a job with a configuration needs the script's own beside it, as its baseline")
        return self


class Observation(Value):
    """What the chosen `fit` said about itself, before a single micro-step."""

    config: Config = Field(description="the script's own configuration")
    structure: str
    parameters: int
    samples: int | None
    samples_exact: bool = Field(True, description="samples were counted; else a batch may be partial")
    epochs: int
    steps_per_epoch: int | None = Field(description="micro-steps an epoch, as the script has it")
    explicit_steps_per_epoch: bool
    data: str = Field(description="arrays | tf.data | PyDataset | DataLoader | generator | synthetic | other")
    rebatchable: bool
    batch_norm: bool
    random_layers: bool = Field(description="dropout, noise, random augmentation")
    recurrent: bool
    unweighted_metrics: bool
    custom_train_step: bool
    masks: bool = Field(False, description="positions are left out of the loss")
    added_losses: bool = Field(False, description="losses that layers add of their own outputs, past any weights")
    unscaled_train_step: bool = Field(False, description="its own train_step never calls optimizer.scale_loss")
    own_optimizers: list[str] = Field([], description="attributes with optimizers that its own train_step applies")
    schedule: bool = Field(description="a learning-rate schedule that counts micro-steps")
    ema: bool
    optimizer: str
    writers_left_out: list[str] = Field([], description="callbacks that write and are left out of trials")
    intercepted: list[str] = Field([], description="calls of the script that a candidate overrides")
    held: dict[str, str] = Field({}, description="knobs that this source does not let be turned, with the reason")
    layer_kinds: list[str] = Field([], description="class names of the model's layers, for known_issues")
    setup_seconds: float
    devices: int
    device_kind: str
    device_memory_bytes: int | None
    process_bytes: int | None = Field(None, description="held before the first micro-step: libraries, data, weights")
    environment: dict[str, str]
    notes: list[str] = []


@dataclass(frozen=True)
class JobResult:
    """What became of a job: exactly one of `value` and `failure` is set.

    peak_bytes is the most memory that its processes were seen to take, in bytes (`endings.Watched`).
    """

    value: dict[str, Any] | None
    failure: Failure | None
    wall_seconds: float
    peak_bytes: int | None = None
    phases: dict[str, float] = field(default_factory=dict)


@dataclass
class _Running:
    """A job under way: what its channel has said so far, what it prints, and what it holds."""

    started_at: float
    output: JobOutput
    watched: Watched = field(default_factory=Watched.start)
    pid: int | None = None
    phase: str = "start"
    phase_at: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    value: dict[str, Any] | None = None
    failure: Failure | None = None
    error: errors.AutoplanError | None = None
    status: int | None = None

    @property
    def answered(self) -> bool:
        return self.value is not None or self.failure is not None or self.error is not None

    def wall_seconds(self) -> float:
        return time.monotonic() - self.started_at

    def enter(self, phase: str) -> None:
        now = time.monotonic()
        self.phases[self.phase] = self.phases.get(self.phase, 0.0) + now - (self.phase_at or self.started_at)
        self.phase, self.phase_at = phase, now


class Client:
    """Starts, limits and ends worker processes. A context manager; `run` may be called from several threads.

    Nothing outlives it: the server kills its jobs when this process ends, however it ends.
    """

    def __init__(self, backend: str = "jax", *, environment: dict[str, str] | None = None) -> None:
        self._backend = backend
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._drainer: threading.Thread | None = None
        self._server_says = ""
        self._preload: set[str] = set()
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every job; what still waits for one in another thread gets an error."""
        self._closed = True
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=5)
        self._forget()

    def run(
        self,
        job: Job,
        *,
        time_limit_seconds: float,
        memory_limit_bytes: int | None = None,
        log: Path | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> JobResult:
        """Run one job in a process of its own and wait for what becomes of it.

        Raises SourceError (ScriptFailed, NeverFits) when the source itself is at fault in a job that only looks
        (observe, trace); everything else that can go wrong is a Failure.
        """
        with JobOutput(log) as output, _temporary_files() as folder:
            running = _Running(time.monotonic(), output)
            with self._channel(job, output, folder) as channel:
                try:
                    for event in self._events(channel, running, time_limit_seconds, memory_limit_bytes):
                        self._take(event, running, on_phase)
                finally:
                    if running.pid is not None:
                        running.watched.end(running.pid)
            output.finish()
        if running.error is not None:
            raise running.error
        failure = None if running.value is not None else running.failure or _failure(self._ending(running), running)
        running.enter("end")
        return JobResult(running.value, failure, running.wall_seconds(), running.watched.peak or None, running.phases)

    def _ending(self, running: _Running) -> Ending:
        """How a job ended without an answer.

        WorkerError where it never started, unless somebody ended the server, and where the client has been closed.
        """
        if self._closed:
            raise errors.WorkerError(f"the workers of the {self._backend} backend have been ended")
        if running.pid is not None or running.status is not None:
            return exit_status.of_status(running.status, running.watched, running.phase)
        number = self._signal_of_server()
        if number is None or not exit_status.from_outside(number):
            raise self._unavailable()
        name = signal.Signals(number).name
        return Ending(FailureKind.CRASH, f"the worker server was ended by {name} before the job started", outside=True)

    def _signal_of_server(self) -> int | None:
        """The signal that ended the server; None where it ended otherwise, or has not ended."""
        if self._server is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(timeout=5)
        code = self._server.returncode
        return -code if code is not None and code < 0 else None

    @contextlib.contextmanager
    def _channel(self, job: Job, output: JobOutput, folder: str | None) -> Iterator[socket.socket]:
        """Hand the job to the server and yield our end of its channel."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            options = {**job.options, "preload": sorted(self._preload), "temporary": folder}
            message = job.model_copy(update={"options": options}).model_dump_json().encode() + b"\n"
            self._send(message, theirs.fileno(), output.writer)
            theirs.close()
            output.hand_over()
            yield ours

    def _send(self, message: bytes, *descriptors: int) -> None:
        """Give the server a job; a fresh server where the one at hand was killed since the last job."""
        with self._lock:
            for _ in range(2):
                control = self._started()
                try:
                    socket.send_fds(control, [len(message).to_bytes(8, "big")], descriptors)
                    control.sendall(message)
                except OSError:
                    self._forget()
                else:
                    return
        raise self._unavailable()

    def _unavailable(self) -> errors.WorkerError:
        """The server does not come up: with the last line of why."""
        number = self._signal_of_server()
        self._forget()
        ended = "it said nothing" if number is None else f"it was ended by {signal.Signals(number).name}"
        said = self._server_says.strip().splitlines() or [ended]
        return errors.WorkerError(
            f"the worker server of the {self._backend} backend does not run: {said[-1]}; "
            f"is the backend installed here (pip install 'autoplan[{self._backend}]')?"
        )

    def _started(self) -> socket.socket:
        if self._closed:
            raise errors.WorkerError(f"the workers of the {self._backend} backend have been ended")
        if self._control is not None and self._server is not None and self._server.poll() is None:
            return self._control
        self._forget()
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                # -P: the user's folder may hold a file named like a package that the server imports
                [sys.executable, "-P", "-m", "autoplan.worker", "serve", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "KERAS_BACKEND": self._backend, **self._environment},
                start_new_session=True,
            )
        self._drainer = threading.Thread(target=self._drain, args=(self._server,), daemon=True)
        self._drainer.start()
        self._control = ours
        return ours

    def _drain(self, server: subprocess.Popen[bytes]) -> None:
        """Keep the last of what the server says on stderr, for the message when it does not come up."""
        if server.stderr is not None:
            with server.stderr as stream:
                self._server_says = stream.read()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            processes.kill_tree(self._server.pid)
            self._server.wait()
        if self._drainer is not None:
            self._drainer.join(timeout=5)
        self._server = self._control = self._drainer = None

    def _events(
        self, channel: socket.socket, running: _Running, time_limit_seconds: float, memory_limit_bytes: int | None
    ) -> Iterator[dict[str, Any]]:
        """What the channel says, until the job has answered and ended or a limit ends it."""
        pending = b""
        looked_at = time.monotonic()
        while True:
            readable, _, _ = select.select(_sources(channel, running.output), [], [], _WATCH_SECONDS)
            if running.output in readable:
                running.output.take()
            if channel in readable:
                received = channel.recv(1 << 16)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                yield from map(json.loads, lines)
                if running.status is not None or running.answered:
                    return
            # Not at every turn: a job that prints without end would be read as slowly as it is looked at.
            if time.monotonic() - looked_at >= _WATCH_SECONDS:
                self._enforce(running, time_limit_seconds, memory_limit_bytes)
                looked_at = time.monotonic()
            if running.failure is not None:
                return

    def _enforce(self, running: _Running, time_limit_seconds: float, memory_limit_bytes: int | None) -> None:
        ending = None
        if running.pid is not None:
            running.watched.look(running.pid)
            ending = exit_status.over_limit(running.watched, memory_limit_bytes, running.phase)
        if ending is None and running.wall_seconds() > time_limit_seconds:
            message = f"not done after {time_limit_seconds:.0f} s; it was in phase {running.phase}"
            ending = Ending(FailureKind.TIMEOUT, message)
        if ending is not None:
            running.failure = _failure(ending, running)

    def _take(self, event: dict[str, Any], running: _Running, on_phase: Callable[[str], None] | None) -> None:
        match event["event"]:
            case "started":
                running.pid = event["pid"]
            case "phase":
                running.enter(event["name"])
                if on_phase is not None:
                    on_phase(event["name"])
            case "imported":
                self._preload.update(event["names"])
            case "result":
                running.value = event["value"]
            case "failure":
                ending = Ending(FailureKind(event["kind"]), event["message"], event.get("outside", False))
                running.failure = _failure(ending, running)
            case "error":
                running.output.finish()
                said = running.output.log.tail()
                running.error = getattr(errors, event["error"])(_with_output(event["message"], said))
            case "exit":
                running.status = event["status"]


@contextlib.contextmanager
def _temporary_files() -> Iterator[str | None]:
    """Where a job leaves its temporary files: it may be killed, and never ends as a program does that tidies up.

    None where there is no room for a folder.
    """
    try:
        folder = HeldFolder()
    except OSError:
        yield None
        return
    try:
        yield str(folder.path)
    finally:
        folder.remove()


def _sources(channel: socket.socket, output: JobOutput) -> list[socket.socket | JobOutput]:
    """What to wait for: output whose last writer has gone would be ready for ever."""
    return [channel, output] if output.open else [channel]


def _failure(ending: Ending, running: _Running) -> Failure:
    kept = running.output.log.written_to
    return Failure(
        kind=ending.kind,
        message=ending.message,
        log=None if kept is None else str(kept),
        wall_seconds=running.wall_seconds(),
        held_bytes=running.watched.peak if ending.of_memory else None,
        outside=ending.outside,
    )


def _with_output(message: str, said: str) -> str:
    if not message.endswith(SEE_OUTPUT):
        return message
    lines = [line for line in said.splitlines() if line.strip()][-_LINES_SHOWN:]
    return "\n  ".join([message, *lines]) if lines else message.removesuffix(SEE_OUTPUT)


def log_tail(log: Path | None) -> str:
    """The last of a job's output, for a person to read."""
    if log is None or not log.exists():
        return ""
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
