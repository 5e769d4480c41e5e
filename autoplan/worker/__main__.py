"""Runs a worker server (`python -m autoplan.worker serve --fd N`, started by the planner), or a single job (`job`)."""

from __future__ import annotations

import os
import socket
import sys

from autoplan.machine import processes


def main(arguments: list[str]) -> int:
    """Serve jobs over an inherited socket until it closes, or run one job that the server does not fork."""
    match arguments:
        case ["serve", "--fd", fd]:
            return serve(int(fd))
        case ["job", "--fd", fd, "--parent", server]:
            from autoplan.worker.process.start_methods import run_spawned

            run_spawned(int(fd), int(server))
    sys.stderr.write("usage: python -m autoplan.worker serve --fd N (started by autoplan itself)\n")
    return 2


def serve(fd: int) -> int:
    """Run the server until its control socket closes."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    with processes.dying_with_parent():
        if _is_closed(control):
            return 0
        from autoplan.worker.process.server import Server, preload

        preload(os.environ["KERAS_BACKEND"])
        from autoplan.worker.process.job_process import run_job

    Server(control, run_job).serve()
    return 0


def _is_closed(control: socket.socket) -> bool:
    """Return whether the other end of the socket is already closed."""
    try:
        return control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
