"""A job's side of its channel: what it says, in the order it happens, and the way out."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any, NoReturn

from autoplan.errors import AutoplanError
from autoplan.jobs import PRELOADABLE
from autoplan.plan import FailureKind


class Channel:
    """Says one JSON object a line to the client that asked. After an answer the process leaves at once.

    Leaving by `os._exit` skips the script's own exit handlers and non-daemon threads: a trial has what it came for.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def started(self) -> None:
        self._say(event="started", pid=os.getpid())

    def phase(self, name: str) -> None:
        """Tell what is happening now: setup, build, compile, warm-up, measure ..."""
        self._say(event="phase", name=name)

    def result(self, value: dict[str, Any]) -> NoReturn:
        self._say(event="imported", names=[name for name in PRELOADABLE if name in sys.modules])
        self._say(event="result", value=value)
        self._leave()

    def failure(self, kind: FailureKind, message: str) -> NoReturn:
        self._say(event="failure", kind=kind.value, message=message)
        self._leave()

    def error(self, error: AutoplanError) -> NoReturn:
        """The source itself is at fault: the client raises the same error."""
        self._say(event="error", error=type(error).__name__, message=str(error))
        self._leave()

    def _say(self, **message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _leave(self) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(0)
