"""Temporary folders, each held by a lock while its process lives; what a killed one leaves is removed by the next.

A kill gives no time to tidy up, and what was left may be large: data sets that workers map, compiled programs.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX = "autoplan-"
_LOCK = "in-use"


class HeldFolder:
    """A new temporary folder, this process's until it is removed or the process ends. OSError where none can be made.

    The lock is there before it has its name: a folder without a lock by that name is nobody else's to remove.
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        partial = self.path / f".{_LOCK}"
        self._lock = partial.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        partial.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove it with all that it holds, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned() -> None:
    """Remove the folders whose processes have ended without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether it has a lock that nobody holds."""
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
