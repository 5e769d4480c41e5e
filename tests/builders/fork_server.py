"""Runs Python programs in forks of a process that has already imported Keras, JAX and autoplan's runtime.

Importing them takes longer than the small trainings of tests. A fork has no backend yet and no threads, so a program
runs in it as in a process of its own, to its `atexit` functions; only what it imports is there already.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ForkServer:
    """A process with the JAX backend of Keras that starts programs on request."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        environment = {**environment, "KERAS_BACKEND": "jax"}
        command = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` (a script, or -m and a module) and return what it printed and its exit code."""
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, "stdout"), Path(folder, "stderr")]
            asked = {"words": list(words), "cwd": str(cwd), "streams": [str(one) for one in streams]}
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(words, code, *(one.read_text() for one in streams))

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes its streams, and waits
            pass


def serve() -> None:
    """Fork for each line of standard input; a fork returns from here, and runs its program at the end of this file."""
    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(asked: Mapping[str, Any]) -> None:
    """Take the streams, working directory and arguments of a program."""
    for number, path in enumerate(asked["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(asked["cwd"])
    words = asked["words"]
    sys.argv = words[1:] if words[0] == "-m" else words
    sys.path[0] = asked["cwd"] if words[0] == "-m" else str(Path(words[0]).resolve().parent)


if __name__ == "__main__":
    importlib.import_module("autoplan.runtime.train")  # and Keras with it
    serve()
    if sys.argv[0] == __file__:  # the server itself, at the end of its input
        sys.exit(0)
    if sys.argv[0] == "autoplan.runtime":
        runpy.run_module("autoplan.runtime", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
