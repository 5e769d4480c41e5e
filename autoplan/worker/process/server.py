"""The server: a process that has imported Keras and the backend, and forks a process a job, or starts it anew.

It must stay single-threaded and must never touch a device: a JAX backend that exists, or a thread that holds a lock,
does not survive a fork (`starting.why_not_fork`). It watches two things: its control socket (a job comes in; the end of
it means that the planner is gone, however it went) and the ends of its children.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from autoplan.jobs.messages import Job
from autoplan.machine import processes
from autoplan.runtime.backends import PRELOADED
from autoplan.worker.process import spawn

_HEADER_BYTES = 8


@dataclass
class Server:
    """`run_job(job, channel)` is what a forked child does; it does not return."""

    control: socket.socket
    run_job: spawn.RunJob
    children: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> None:
        """Until the control socket ends. Leaves no process behind."""
        processes.adopt_orphans()
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
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
        """Take one job and start it; False when there will be no more."""
        header, descriptors, _, _ = socket.recv_fds(self.control, _HEADER_BYTES, 2)
        message = self._receive(int.from_bytes(header, "big")) if header else b""
        if not message:
            return False
        channel_fd, log_fd = descriptors
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._start(message, socket.socket(fileno=channel_fd), log_fd)
        os.close(log_fd)
        return True

    def _receive(self, size: int) -> bytes:
        """So many bytes of the control socket; none when it ends before."""
        message = b""
        while len(message) < size:
            received = self.control.recv(size - len(message))
            if not received:
                return b""
            message += received
        return message

    def _start(self, message: bytes, connection: socket.socket, log_fd: int) -> None:
        job = Job.model_validate_json(message)
        # What imports listens to nobody meanwhile; but jobs that run would be left without a guardian.
        with contextlib.nullcontext() if self.children else processes.dying_with_parent():
            spawn.import_for(job)
        if spawn.why_not_fork() is None:
            others = [self.control, *self.children.values()]
            pid = spawn.fork(job, connection, log_fd, self.run_job, others)
        else:
            pid = spawn.spawn(message, connection, log_fd)
        self.children[pid] = connection

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


def preload(backend: str) -> None:
    """Import what every job needs, so that a fork has it already."""
    # Keras asks PyTorch for a device when it is imported; asked of CUDA itself, that would open the device in here.
    with _environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        for name in ("numpy", *PRELOADED[backend], "keras", "autoplan.worker.process.job_loop"):
            importlib.import_module(name)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables that are not set already, set for a while."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
