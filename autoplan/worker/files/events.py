"""Describes audit events of Python that write files, send data or start programs, as plain values."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ActionKind(Enum):
    """The kinds of actions.

    UPDATES   opens a file to read and write it, or to append to it
    REPLACES  removes, renames or truncates a file
    CREATES   makes a folder or a link
    SENDS     connects to another machine
    STARTS    starts another program, whose writes cannot be seen
    """

    UPDATES = auto()
    REPLACES = auto()
    CREATES = auto()
    SENDS = auto()
    STARTS = auto()


@dataclass(frozen=True)
class Action:
    """One operation that is about to happen. `target` is a path, an address or a program."""

    kind: ActionKind
    target: str

    @property
    def on_files(self) -> bool:
        return self.kind not in (ActionKind.SENDS, ActionKind.STARTS)

    def describe(self) -> str:
        """Return the action in words, with a path relative to the working directory."""
        if self.kind is ActionKind.SENDS:
            return f"connects to {self.target}"
        if self.kind is ActionKind.STARTS:
            return f"starts {self.target}"
        return f"writes {shown(self.target)}"


def shown(path: str) -> str:
    """Return a path relative to the working directory if it is inside."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def actions(event: str, arguments: tuple[Any, ...]) -> Iterator[Action]:
    """Yield the actions of an audit event; nothing for an event that neither writes nor sends."""
    reader = _READERS.get(event)
    if reader is not None:
        yield from reader(arguments)


def path_of(name: Any, folder: Any = -1) -> str | None:
    """Return the absolute path of a file name; None for a descriptor or an empty name.

    folder  descriptor of the folder that a relative name refers to; -1 is the working directory
    """
    if isinstance(name, int) or name is None:
        return None
    try:
        text = os.fsdecode(name)
        if not text:
            return None
        start = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else None
        base = os.readlink(start) if start is not None else os.getcwd()  # noqa: PTH109, PTH115 -- no objects in a hook
    except (OSError, TypeError, ValueError):
        return None
    return os.path.normpath(os.path.join(base, text))  # noqa: PTH118


def _opened(arguments: tuple[Any, ...]) -> Iterator[Action]:
    name, mode, flags = (*arguments, None, None, None)[:3]
    written = isinstance(flags, int) and bool(flags & _WRITES)
    path = path_of(name)
    if not written or path is None:
        return
    truncates = bool(flags & os.O_TRUNC) or (isinstance(mode, str) and "w" in mode)
    yield Action(ActionKind.REPLACES if truncates else ActionKind.UPDATES, path)


def _removed(arguments: tuple[Any, ...]) -> Iterator[Action]:
    name, folder = (*arguments, -1)[:2]
    path = path_of(name, folder)
    if path is not None:
        yield Action(ActionKind.REPLACES, path)


def _renamed(arguments: tuple[Any, ...]) -> Iterator[Action]:
    source, target, from_folder, to_folder = (*arguments, -1, -1)[:4]
    for path in (path_of(source, from_folder), path_of(target, to_folder)):
        if path is not None:
            yield Action(ActionKind.REPLACES, path)


def _truncated(arguments: tuple[Any, ...]) -> Iterator[Action]:
    yield from _removed(arguments[:1])


def _created(arguments: tuple[Any, ...]) -> Iterator[Action]:
    path = path_of(arguments[0])
    if path is not None:
        yield Action(ActionKind.CREATES, path)


def _linked(arguments: tuple[Any, ...]) -> Iterator[Action]:
    path = path_of(arguments[1])
    if path is not None:
        yield Action(ActionKind.CREATES, path)


def _database(arguments: tuple[Any, ...]) -> Iterator[Action]:
    name = arguments[0]
    if name and name != ":memory:":
        path = path_of(str(name).removeprefix("file:").partition("?")[0])
        if path is not None:
            yield Action(ActionKind.UPDATES, path)


def _connected(arguments: tuple[Any, ...]) -> Iterator[Action]:
    connection, address = arguments[:2]
    if getattr(connection, "family", None) in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
        yield Action(ActionKind.SENDS, f"{address[0]}:{address[1]}")


def _started(arguments: tuple[Any, ...]) -> Iterator[Action]:
    program = arguments[0] if arguments else ""
    yield Action(ActionKind.STARTS, os.fsdecode(program) if isinstance(program, (str, bytes)) else "another program")


_READERS: Mapping[str, Callable[[tuple[Any, ...]], Iterator[Action]]] = {
    "open": _opened,
    "os.remove": _removed,
    "os.rmdir": _removed,
    "shutil.rmtree": _removed,
    "os.rename": _renamed,
    "os.truncate": _truncated,
    "os.mkdir": _created,
    "os.symlink": _linked,
    "os.link": _linked,
    "sqlite3.connect": _database,
    "socket.connect": _connected,
    "subprocess.Popen": _started,
    "os.system": _started,
    "os.posix_spawn": _started,
    "os.exec": _started,
}
EVENTS = frozenset(_READERS)
"""The audit events that `actions` reads."""
