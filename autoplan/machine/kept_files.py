"""Keeps copies of the user's files before a job changes them, and puts them back when the job has ended.

The job writes the copies into its temporary folder, with one line in a journal for each. The client puts them back
before it removes the folder, so this also holds for a job that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_FOLDER = "kept-files"
_JOURNAL = "journal"
MOST_BYTES = 256 * 2**20
"""The largest size of all copies of a job together."""


class KeptFiles:
    """The copies of a job, in a folder of its own inside `temporary`."""

    def __init__(self, temporary: Path) -> None:
        self._folder = temporary / _FOLDER
        self._left_bytes = MOST_BYTES
        self._known: dict[str, bool] = {}

    def keep(self, path: Path) -> bool:
        """Keep a copy of a file, or of all files in a folder. Returns whether it can be put back as it is now.

        Only the first call with a path copies it. A file that does not fit is not kept.
        """
        name = str(path)
        if name not in self._known:
            every = [self._keep_file(one) for one in _files(path)]  # also the files after one that is not kept
            self._known[name] = all(every)
        return self._known[name]

    def _keep_file(self, path: Path) -> bool:
        name = str(path)
        if name in self._known:
            return self._known[name]
        self._known[name] = False
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if size <= self._left_bytes:
                self._folder.mkdir(exist_ok=True)
                number = len(self._known)
                shutil.copy2(path, self._folder / str(number))
                with (self._folder / _JOURNAL).open("a") as journal:
                    journal.write(json.dumps([str(number), name]) + "\n")
                self._left_bytes -= size
                self._known[name] = True
        return self._known[name]


def put_back(temporary: Path) -> list[Path]:
    """Put the kept files of a job back where they have changed. Returns their paths; files without room are skipped."""
    restored = []
    for number, path in _journal(temporary / _FOLDER):
        kept = temporary / _FOLDER / number
        with contextlib.suppress(OSError):
            if not _alike(kept, path):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(kept, path)
                restored.append(path)
    return restored


def _journal(folder: Path) -> Iterator[tuple[str, Path]]:
    try:
        lines = (folder / _JOURNAL).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a job that was killed
            number, name = json.loads(line)
            yield number, Path(name)


def _files(path: Path) -> list[Path]:
    if path.is_symlink() or not path.is_dir():
        return [path]
    return [Path(folder) / name for folder, _, names in os.walk(path) for name in names]


def _alike(kept: Path, path: Path) -> bool:
    """Return whether a file has not been changed since it was kept, by size and time."""
    try:
        now = path.stat()
    except OSError:
        return False
    then = kept.stat()
    return (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns)
