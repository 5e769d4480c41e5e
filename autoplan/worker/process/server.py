"""Serves jobs: a process that has imported Keras and the backend, and starts one process per job.

It must stay single-threaded and never use a device, because neither a JAX backend nor a thread that holds a lock
survives a fork (`start_methods.why_not_fork`). It waits for two kinds of events: jobs on its control socket, whose end
means that the planner has ended, and exits of its children.
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
from autoplan.worker.process import start_methods

_HEADER_BYTES = 8


@dataclass
class Server:
    """Accepts jobs and starts their processes.

    run_job   function that a forked child calls; it does not return
    children  channel of each running job, by process id
    """

    control: socket.socket
    run_job: start_methods.RunJob
    children: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> None:
        """Serve until the control socket closes. Ends all processes that it has started."""
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
        """Receive one job and start it. Returns False at the end of the control socket."""
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
        """Receive `size` bytes from the control socket; b"" if it closes before."""
        message = b""
        while len(message) < size:
            received = self.control.recv(size - len(message))
            if not received:
                return b""
            message += received
        return message

    def _start(self, message: bytes, connection: socket.socket, log_fd: int) -> None:
        job = Job.model_validate_json(message)
        # The server does not watch its control socket during an import, so it must die with its parent, unless jobs
        # are running: they would not be ended.
        with contextlib.nullcontext() if self.children else processes.dying_with_parent():
            start_methods.import_for(job)
        if start_methods.why_not_fork() is None:
            others = [self.control, *self.children.values()]
            pid = start_methods.fork(job, connection, log_fd, self.run_job, others)
        else:
            pid = start_methods.spawn(message, connection, log_fd)
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
            return  # the client has its answer and has closed the channel


def preload(backend: str) -> None:
    """Import the modules that every job needs, so that a fork has them already."""
    # When Keras is imported, it asks PyTorch for a device; without this setting PyTorch would open a CUDA device here.
    with _environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        for name in ("numpy", *PRELOADED[backend], "keras", "autoplan.worker.process.job_process"):
            importlib.import_module(name)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables in this context, unless they are set already."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
