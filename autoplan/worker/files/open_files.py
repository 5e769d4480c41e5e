"""Redirects files that a script has opened for writing before its fit, so that the fit writes to temporary files."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_STANDARD = (0, 1, 2)


def redirect(is_of_the_user: Callable[[str], bool]) -> list[str]:
    """Redirect each file that is open only for writing to an empty temporary file. Returns the paths.

    A descriptor stays valid and refers to the temporary file, so this also holds for code in C. Files that are open for
    reading too are left alone, because the training may read its data from them. Does nothing without /proc.
    """
    if not _DESCRIPTORS.is_dir():
        return []
    standard = {_identity(number) for number in _STANDARD}
    redirected = []
    for number in [int(entry.name) for entry in _DESCRIPTORS.iterdir()]:
        path = _written_file(number)
        if path is not None and _identity(number) not in standard and is_of_the_user(path):
            _replace(number)
            redirected.append(path)
    return redirected


def _written_file(number: int) -> str | None:
    """Return the path of a regular file that is open only for writing; else None."""
    try:
        path = str((_DESCRIPTORS / str(number)).readlink())
        lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
        regular = stat.S_ISREG(os.fstat(number).st_mode)
    except OSError:  # the descriptor of the folder itself is closed by now
        return None
    flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    written = flags & os.O_ACCMODE == os.O_WRONLY
    return path if regular and written and Path(path).exists() else None


def _identity(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _replace(number: int) -> None:
    descriptor, _ = tempfile.mkstemp(prefix="autoplan-")
    inheritable = os.get_inheritable(number)
    os.dup2(descriptor, number, inheritable=inheritable)
    os.close(descriptor)
