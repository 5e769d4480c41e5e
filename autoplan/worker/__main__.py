"""`python -m autoplan.worker serve --fd N`: the server that the planner's client starts; `job`: one job of it."""

from __future__ import annotations

import os
import socket
import sys

from autoplan.machine import processes


def main(arguments: list[str]) -> int:
    """Serve jobs over an inherited socket until it ends, or be one job that the server cannot fork."""
    match arguments:
        case ["serve", "--fd", fd]:
            return serve(int(fd))
        case ["job", "--fd", fd, "--parent", server]:
            from autoplan.worker.process.spawn import run_spawned

            run_spawned(int(fd), int(server))
    sys.stderr.write("usage: python -m autoplan.worker serve --fd N (started by autoplan itself)\n")
    return 2


def serve(fd: int) -> int:
    """The server, until its control socket ends."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    with processes.dying_with_parent():
        if _has_ended(control):
            return 0
        from autoplan.worker.process.server import Server, preload

        preload(os.environ["KERAS_BACKEND"])
        from autoplan.worker.process.job_loop import run_job

    Server(control, run_job).serve()
    return 0


def _has_ended(control: socket.socket) -> bool:
    """Whether the other end is gone already."""
    try:
        return control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
