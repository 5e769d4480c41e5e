"""`python -m autoplan.worker serve --fd N`: the server that the planner's client starts."""

from __future__ import annotations

import os
import socket
import sys


def main(arguments: list[str]) -> int:
    """Serve jobs over an inherited socket until it ends."""
    if len(arguments) != 3 or arguments[:2] != ["serve", "--fd"]:
        sys.stderr.write("usage: python -m autoplan.worker serve --fd N (started by autoplan itself)\n")
        return 2
    control = socket.socket(fileno=int(arguments[2]))
    from autoplan.worker.server import Server, preload

    preload(os.environ["KERAS_BACKEND"])
    from autoplan.worker.session import run_job

    Server(control, run_job).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
