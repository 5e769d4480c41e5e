"""Starts the process of a job: by fork from the server if that is safe, else by spawn of a new interpreter.

A fork copies only one thread. Locks of other threads, and the state of drivers for the process that opened them, are
unusable in the child. Backends and their versions differ in what their import starts, so the server checks its own
threads and open files before each job (`why_not_fork`).
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, NoReturn

from autoplan.errors import ConfigError
from autoplan.jobs.client import PRELOADABLE
from autoplan.jobs.messages import Job
from autoplan.machine import processes
from autoplan.worker.channel import Channel

START_METHOD = "AUTOPLAN_START_METHOD"
"""Environment variable that overrides the choice: fork or spawn."""
DEVICE_FILES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/vfio/")
"""Device files that CUDA, ROCm, Level Zero and TPU runtimes keep open once a process has used a device."""

RunJob = Callable[[Job, Channel], None]


def why_not_fork() -> str | None:
    """Describe what in this process would not survive a fork; None if nothing is found.

    ConfigError if AUTOPLAN_START_METHOD is neither fork nor spawn.
    """
    requested = os.environ.get(START_METHOD)
    if requested not in (None, "", "fork", "spawn"):
        raise ConfigError(f"{START_METHOD} is {requested!r}; expected fork or spawn")
    if requested:
        return None if requested == "fork" else f"{START_METHOD}=spawn"
    if sys.platform != "linux":
        return "system libraries do not survive a fork on this platform"
    drivers = sorted({name for name in _open_files() if name.startswith(DEVICE_FILES)})
    if drivers:
        return f"a device is in use ({', '.join(drivers)})"
    if threads() > 1 and _threads_after_a_fork() > 1:
        return f"{threads()} threads are running"
    return None


def import_for(job: Job) -> None:
    """Import the modules that earlier jobs have imported, so that this job starts faster."""
    for name in job.options.get("preload", ()):
        if name in PRELOADABLE:
            importlib.import_module(name)


def threads() -> int:
    """Return the number of threads of this process, including those of native libraries."""
    return len(list(Path("/proc/self/task").iterdir()))


def _threads_after_a_fork() -> int:
    """Return the number of threads that are left after a fork.

    A library that supports forks ends its threads before a fork and starts them again when it needs them. OpenBLAS does
    so; its threads exist from the import of NumPy on.
    """
    pid = _quiet_fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return threads()


def _open_files() -> Iterable[str]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            yield str(link.readlink())
        except OSError:
            continue  # the descriptor of the listing itself


def _quiet_fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn about threads, which `why_not_fork` has checked
        return os.fork()


def fork(job: Job, connection: socket.socket, log_fd: int, run_job: RunJob, others: Iterable[socket.socket]) -> int:
    """Run the job in a fork of this process and return its process id.

    others  sockets that the fork closes
    """
    pid = _quiet_fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        _become_job(job, connection, log_fd, lambda: run_job)
    finally:
        os._exit(1)


def spawn(message: bytes, connection: socket.socket, log_fd: int) -> int:
    """Run a job in a new interpreter and return its process id.

    message  the job as JSON, which the interpreter reads from stdin

    The arguments name the descriptor of the channel. Stdout and stderr are the log.
    """
    with _anonymous_file() as job_file:
        job_file.write(message)
        job_file.seek(0)
        os.set_inheritable(connection.fileno(), True)
        arguments = ["job", "--fd", str(connection.fileno()), "--parent", str(os.getpid())]
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "autoplan.worker", *arguments],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, job_file.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, log_fd, 1),
                    (os.POSIX_SPAWN_DUP2, log_fd, 2),
                ],
            )
        finally:
            os.set_inheritable(connection.fileno(), False)


def _anonymous_file() -> IO[bytes]:
    """Return an unnamed file, in memory if the system supports it, so that a full disk does not matter."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("autoplan-job"), "w+b")
    return tempfile.TemporaryFile()


def run_spawned(channel_fd: int, parent: int) -> NoReturn:
    """Run the job in an interpreter that `spawn` has started.

    parent  process id of the server; the job ends when the server ends
    """
    job = Job.model_validate_json(sys.stdin.buffer.read())
    os.set_inheritable(channel_fd, False)

    def importing() -> RunJob:
        from autoplan.worker.process.job_process import run_job

        import_for(job)
        return run_job

    _become_job(job, socket.socket(fileno=channel_fd), os.dup(1), importing, parent=parent)


def _become_job(
    job: Job,
    connection: socket.socket,
    log_fd: int,
    importing: Callable[[], RunJob],
    *,
    parent: int | None = None,
) -> NoReturn:
    """Make this process the job's: a new session, output to the log, an end with its server. Then run the job."""
    try:
        os.setsid()
        processes.die_with_parent()
        if parent is not None and os.getppid() != parent:
            os._exit(1)  # the server ended before `die_with_parent` took effect
        redirect_output(log_fd)
        channel = Channel(connection)
        channel.started()
        channel.phase("import")
        importing()(job, channel)
    except BaseException:  # noqa: BLE001 -- no exception may propagate out of this process
        traceback.print_exc()
    finally:
        os._exit(1)


def redirect_output(log_fd: int) -> None:
    """Redirect stdout and stderr to the job's log, and stdin to the null device."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log_fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- lives as long as the process
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 -- lives as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 -- lives as long as the process
