"""Creates locked temporary folders, and removes the folders of processes that have ended.

A killed process cannot remove its folders, which may be large: data sets that workers map, compiled programs.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX = "autoplan-"
_LOCK = "in-use"


class LockedFolder:
    """A new temporary folder with a lock that this process holds until it removes the folder or ends.

    The lock file is renamed after it is locked, and folders without a lock file of that name are not removed.

    OSError if the folder cannot be created.
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        partial = self.path / f".{_LOCK}"
        self._lock = partial.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        partial.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder and its contents as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned() -> None:
    """Remove the folders of processes that have ended without removing them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder has a lock file that no process has locked."""
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
