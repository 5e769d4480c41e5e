"""The server: a process that has imported Keras and the backend, and forks a process a job.

It must stay single-threaded and must never touch a device: a JAX backend that exists, or a thread that holds a lock,
does not survive a fork. It watches two things: its control socket (a job comes in; the end of it means that the planner
is gone, however it went) and the ends of its children.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from autoplan import processes
from autoplan.jobs import PRELOADABLE, Job
from autoplan.runtime.backends import PRELOADED
from autoplan.worker.channel import Channel


@dataclass
class Server:
    """`run_job(job, channel)` is what a forked child does; it does not return."""

    control: socket.socket
    run_job: Callable[[Job, Channel], None]
    children: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> None:
        """Until the control socket ends. Leaves no process behind."""
        processes.adopt_orphans()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watched: list[socket.socket | int] = [self.control, wake_read]
        try:
            while True:
                readable, _, _ = select.select(watched, [], [])
                if wake_read in readable:
                    os.read(wake_read, 4096)
                    self._reap()
                if self.control in readable and not self._accept():
                    return
        finally:
            processes.kill_descendants()

    def _accept(self) -> bool:
        header, descriptors, _, _ = socket.recv_fds(self.control, 8, 2)
        if not header:
            return False
        remaining = int.from_bytes(header, "big")
        message = b""
        while len(message) < remaining:
            received = self.control.recv(remaining - len(message))
            if not received:
                return False
            message += received
        job = Job.model_validate_json(message)
        for name in job.options.get("preload", ()):
            if name in PRELOADABLE:
                importlib.import_module(name)
        self._fork(job, *descriptors)
        return True

    def _fork(self, job: Job, channel_fd: int, log_fd: int) -> None:
        connection = socket.socket(fileno=channel_fd)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns at every fork; see this module's docstring for why it is safe
            pid = os.fork()
        if pid == 0:
            self._become(job, connection, log_fd)
        os.close(log_fd)
        self.children[pid] = connection

    def _become(self, job: Job, connection: socket.socket, log_fd: int) -> None:
        """The child: its own group, its own output, the server's descriptors closed."""
        try:
            os.setsid()
            processes.die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            for other in self.children.values():
                other.close()
            redirect_output(log_fd)
            self.run_job(job, Channel(connection))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            connection = self.children.pop(pid, None)
            if connection is not None:
                _report_exit(connection, status)
        processes.kill_descendants(keep=self.children)


def _report_exit(connection: socket.socket, status: int) -> None:
    with connection:
        try:
            connection.sendall(b'{"event": "exit", "status": %d}\n' % status)
        except OSError:
            return  # the client has its answer and has hung up


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


def preload(backend: str) -> None:
    """Import what every job needs, so that a fork has it already."""
    for name in ("numpy", *PRELOADED[backend], "keras", "autoplan.worker.session"):
        importlib.import_module(name)
