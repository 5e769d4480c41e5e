"""Sends the events and the result of a job to the planner's client, and then ends the job's process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from autoplan.errors import AutoplanError
from autoplan.jobs.client import PRELOADABLE
from autoplan.plan.records import FailureKind

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
"""Keras writes parts of its messages in bold, but plans and messages to the client are plain text."""


class Channel:
    """Sends one JSON object per line to the client. The process ends immediately after an answer.

    It ends with `os._exit`, which skips exit handlers and non-daemon threads of the script. The channel is created
    before the script runs, so that the log can be written even if the script changes stdout and stderr.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._log = os.dup(2)

    def started(self) -> None:
        self._send(event="started", pid=os.getpid())

    def phase(self, name: str) -> None:
        """Report the present phase: setup, build, compile, warm-up, measure ..."""
        self._send(event="phase", name=name)

    def result(self, value: Mapping[str, object]) -> NoReturn:
        _flush()
        self._send(event="imported", names=[name for name in PRELOADABLE if name in sys.modules])
        self._send(event="result", value=value)
        os._exit(0)

    def failure(self, kind: FailureKind, message: str, *, outside: bool = False) -> NoReturn:
        """Send a failure and end the process.

        outside  the failure does not depend on the configuration, and the job may be tried again
        """
        _flush()
        self._send(event="failure", kind=kind.value, message=_ESCAPES.sub("", message), outside=outside)
        os._exit(0)

    def error(self, error: AutoplanError) -> NoReturn:
        """Send an error of the source itself and end the process; the client raises the same error."""
        _flush()
        self._send(event="error", error=type(error).__name__, message=_ESCAPES.sub("", str(error)))
        os._exit(0)

    def log(self, error: BaseException) -> None:
        """Write the traceback of an exception to the job's log."""
        _flush()
        with contextlib.suppress(OSError):
            os.write(self._log, "".join(traceback.format_exception(error)).encode(errors="replace"))

    def _send(self, **message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def disk_is_full(error: BaseException) -> bool:
    """Return whether an exception or one of its causes means that a disk is full, by its errno or its message."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and (seen.errno in _FULL or any(words in str(seen) for words in _FULL_WORDS)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _flush() -> None:
    """Flush the script's output before the answer. The script may have closed or replaced its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
