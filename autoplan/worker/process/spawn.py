"""How a job's process comes to be: forked from the server where that is safe, else started anew.

A fork copies one thread. Whatever another thread held, or a driver keeps for the process that opened it, is broken in
the child for good. So the server looks at what is really there before each job (`why_not_fork`): backends, and versions
of them, differ in what importing them starts.
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
"""The environment variable that decides instead: fork or spawn."""
_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/vfio/")
"""Device files that CUDA, ROCm, Level Zero and TPU runtimes hold open once a process has touched a device."""

RunJob = Callable[[Job, Channel], None]


def why_not_fork() -> str | None:
    """What in this process would not survive a fork; None when nothing is found.

    ConfigError for a value of AUTOPLAN_START_METHOD that is neither fork nor spawn.
    """
    asked = os.environ.get(START_METHOD)
    if asked not in (None, "", "fork", "spawn"):
        raise ConfigError(f"{START_METHOD} is {asked!r}; expected fork or spawn")
    if asked:
        return None if asked == "fork" else f"{START_METHOD}=spawn"
    if sys.platform != "linux":
        return "system libraries do not survive a fork on this platform"
    drivers = sorted({name for name in _open_files() if name.startswith(_DRIVERS)})
    if drivers:
        return f"a device is in use ({', '.join(drivers)})"
    if threads() > 1 and _threads_after_a_fork() > 1:
        return f"{threads()} threads are running"
    return None


def import_for(job: Job) -> None:
    """Import what sources before this one were seen to import: the script then finds it there, forked or not."""
    for name in job.options.get("preload", ()):
        if name in PRELOADABLE:
            importlib.import_module(name)


def threads() -> int:
    """Threads of this process, those of native libraries included."""
    return len(list(Path("/proc/self/task").iterdir()))


def _threads_after_a_fork() -> int:
    """Threads that are left once a child has been forked.

    A library that knows of forks ends its threads before one and starts them again when it needs them, as OpenBLAS
    does, whose threads are there from the import of NumPy on.
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
        warnings.simplefilter("ignore")  # Python and JAX warn of what `why_not_fork` has looked for
        return os.fork()


def fork(job: Job, connection: socket.socket, log_fd: int, run_job: RunJob, others: Iterable[socket.socket]) -> int:
    """Run the job in a copy of this process, without the sockets `others`; returns its process id."""
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
    """Run the job of this message (JSON) in a new interpreter; returns its process id.

    It is told where its channel is, reads its job from stdin, and writes to the log.
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
    """A file without a name; in memory where the system has such, so that a full disk does not matter."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("autoplan-job"), "w+b")
    return tempfile.TemporaryFile()


def run_spawned(channel_fd: int, parent: int) -> NoReturn:
    """What the interpreter that `spawn` started does. parent: the server, with which it ends."""
    job = Job.model_validate_json(sys.stdin.buffer.read())
    os.set_inheritable(channel_fd, False)

    def importing() -> RunJob:
        from autoplan.worker.process.job_loop import run_job

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
    """The job's process: its own group, its own output, an end with its server's, and then the job."""
    try:
        os.setsid()
        processes.die_with_parent()
        if parent is not None and os.getppid() != parent:
            os._exit(1)  # the server ended before this process had asked to be told of it
        redirect_output(log_fd)
        channel = Channel(connection)
        channel.started()
        channel.phase("import")
        importing()(job, channel)
    except BaseException:  # noqa: BLE001 -- nothing may leave this process but through its end
        traceback.print_exc()
    finally:
        os._exit(1)


def redirect_output(log_fd: int) -> None:
    """Send stdout and stderr to the job's log; give it no stdin."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log_fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- lives as long as the process
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 -- lives as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 -- lives as long as the process
