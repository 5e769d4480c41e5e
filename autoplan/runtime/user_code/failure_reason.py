"""Describes an exception in one line that says why: its type, its message, and the cause behind it."""

from __future__ import annotations

import re
from pathlib import Path

import keras

from autoplan import formatting
from autoplan.runtime.user_code.exceptions import raising_entry

_KERAS = str(Path(keras.__file__).parent)
_WRAPPERS = ("Exception encountered when calling", "Could not automatically infer the output shape")
"""Begin the messages of exceptions that Keras raises in place of another one, whose message they quote."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_WHERE = ("Graph execution error", "Detected at node", "File ", "<")
"""Begin lines of TensorFlow's messages that only say where an exception was raised."""


def reason(error: BaseException) -> str:
    """Return one line on why something failed, such as `TypeError: float32 only`.

    Keras's own texts are marked, because their advice is about Keras and not about autoplan. An exception without a
    message is shown with the line that raised it.
    """
    shown = _as_first_raised(error)
    first = _first_of(shown)
    line = _line(shown)
    if first is shown or (str(first).strip() and formatting.first_line(first) in line):
        return line
    return f"{line} (caused by {_line(first)})"


def is_wrapped_by_keras(error: BaseException) -> bool:
    """Return whether Keras raised an exception again, only to add the arguments of a call to its message."""
    if str(error).startswith(_WRAPPERS):
        return True
    before = error.__context__
    own, theirs = raising_entry(error), None if before is None else raising_entry(before)
    if own is None or theirs is None:
        return False
    # Keras gives the traceback of the first exception to the second one.
    return (own.tb_frame, own.tb_lasti) == (theirs.tb_frame, theirs.tb_lasti)


def _as_first_raised(error: BaseException) -> BaseException:
    """Return the exception that Keras raised again."""
    shown = error
    while is_wrapped_by_keras(shown) and shown.__context__ is not None:
        shown = shown.__context__
    return shown


def _first_of(error: BaseException) -> BaseException:
    """Return the first exception that led to this one, without those that the code has hidden."""
    first = error
    while True:
        before = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        if before is None:
            return first
        first = before


def _line(error: BaseException) -> str:
    kind, entry = type(error).__name__, raising_entry(error)
    message = _first_line(str(error))
    said_by = "Keras says: " if entry is not None and entry.tb_frame.f_code.co_filename.startswith(_KERAS) else ""
    if message:
        return f"{said_by}{kind}: {message}"
    return (
        kind if entry is None else f"{kind} in line {entry.tb_lineno} of {Path(entry.tb_frame.f_code.co_filename).name}"
    )


def _first_line(message: str) -> str:
    """Return the first line of a message that says more than where the exception was raised."""
    lines = [line.strip() for line in _ESCAPES.sub("", message).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(_WHERE)), next(iter(lines), ""))
