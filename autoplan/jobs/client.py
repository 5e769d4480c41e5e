"""Starts worker servers, sends jobs to them, enforces time and memory limits, and ends their processes.

A client starts one server a backend (`python -m autoplan.worker serve`), which has imported Keras and the backend and
forks a process a job. Each job has a channel of its own, a Unix socket that carries one JSON object a line:
{"event": "started", "pid"}, {"event": "phase", "name"}, {"event": "imported", "names"}, {"event": "result", "value"},
{"event": "failure", ...}, {"event": "error", "error", "message"} from the job, and {"event": "exit", "status"} from
the server, which waits for it.
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
from pathlib import Path
from types import TracebackType
from typing import Any

from autoplan import errors
from autoplan.jobs import exit_status
from autoplan.jobs.exit_status import Ending, Watched
from autoplan.jobs.messages import Answer, Job, JobResult
from autoplan.jobs.output import JobOutput
from autoplan.machine import kept_files, processes
from autoplan.machine.tempdirs import LockedFolder
from autoplan.plan.records import Failure, FailureKind
from autoplan.sources.source import SourceSpec as SourceSpec  # what a job is about; its home is below this module

PRELOADABLE = ("tensorflow", "torch", "scipy", "pandas", "sklearn", "h5py")
"""Packages that take seconds to import and start no thread. The server imports each after the first job that did."""
SEE_OUTPUT = "; the end of its output:"
"""Ends a message of a worker that the client completes from the job's log."""
_WATCH_SECONDS = 0.2
_LINES_SHOWN = 8
_LOG_TAIL_BYTES = 4000


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
    value: Answer | None = None
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
        """Return how a job ended that gave no answer.

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
        """Return the signal that ended the server; None where it ended in another way or still runs."""
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
        """Return the error of a server that does not start, with the last line of its output."""
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
        """Yield the events of the channel until the job has answered and ended, or a limit ends it."""
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
            message = f"not finished after {time_limit_seconds:.0f} s; it was in phase {running.phase}"
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
    """Yield a folder for a job's temporary files, and remove it: a killed job does not remove its files itself.

    Files of the user that the job has changed are put back first. None where there is no room for a folder.
    """
    try:
        folder = LockedFolder()
    except OSError:
        yield None
        return
    try:
        yield str(folder.path)
    finally:
        kept_files.put_back(folder.path)
        folder.remove()


def _sources(channel: socket.socket, output: JobOutput) -> list[socket.socket | JobOutput]:
    """Return the sources to wait for. Output without a writer is left out, because it would always be ready."""
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
    """Return the end of a job's output."""
    if log is None or not log.exists():
        return ""
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
