"""A job's side of its channel: what it says, in the order it happens, and the way out."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import sys
import traceback
from typing import Any, NoReturn

from autoplan.errors import AutoplanError
from autoplan.jobs.client import PRELOADABLE
from autoplan.plan.records import FailureKind

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
"""Keras writes part of its messages in bold: a plan, or a message that is read elsewhere, is plain text."""


class Channel:
    """Says one JSON object a line to the client that asked. After an answer the process leaves at once.

    Leaving by `os._exit` skips the script's own exit handlers and non-daemon threads: a trial has what it came for.
    Made before the script runs, so that whatever it does to stdout and stderr, the log stays within reach.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._log = os.dup(2)

    def started(self) -> None:
        self._say(event="started", pid=os.getpid())

    def phase(self, name: str) -> None:
        """Tell what is happening now: setup, build, compile, warm-up, measure ..."""
        self._say(event="phase", name=name)

    def result(self, value: dict[str, Any]) -> NoReturn:
        _flush()
        self._say(event="imported", names=[name for name in PRELOADABLE if name in sys.modules])
        self._say(event="result", value=value)
        os._exit(0)

    def failure(self, kind: FailureKind, message: str, *, outside: bool = False) -> NoReturn:
        """outside: it says nothing of the configuration, and may be tried again."""
        _flush()
        self._say(event="failure", kind=kind.value, message=_ESCAPES.sub("", message), outside=outside)
        os._exit(0)

    def error(self, error: AutoplanError) -> NoReturn:
        """The source itself is at fault: the client raises the same error."""
        _flush()
        self._say(event="error", error=type(error).__name__, message=_ESCAPES.sub("", str(error)))
        os._exit(0)

    def log(self, error: BaseException) -> None:
        """Put the whole story of an exception into the job's log."""
        _flush()
        with contextlib.suppress(OSError):
            os.write(self._log, "".join(traceback.format_exception(error)).encode(errors="replace"))

    def _say(self, **message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def disk_is_full(error: BaseException) -> bool:
    """Whether an exception, or what caused it, says that there is no room on a disk. Some libraries say so in words."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and (seen.errno in _FULL or any(words in str(seen) for words in _FULL_WORDS)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _flush() -> None:
    """What the script printed goes first. It may have closed its streams, or put others in their place."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
