"""Locates and locks the database file of a study, and reports how the identities of two studies differ."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from autoplan.errors import StudyError

_LONGEST_SHOWN = 60
_DIGEST_LENGTH = 64

StudyIdentity = Mapping[str, Any]
"""The values that determine the figures of a study, by name: its source, hardware, versions and knobs."""


@dataclass(frozen=True)
class StudyPlace:
    """Where a study lives: its database, and the folder of its trials' logs."""

    url: str
    folder: Path
    name: str

    @classmethod
    def choose(cls, study: str | None, name: str) -> StudyPlace:
        """`--study PATH|URL`; by default `.autoplan/<name>/study.db` under the working directory.

        A path that ends in .db, .sqlite or .sqlite3 is the database, with logs in the folder of that name without the
        ending; any other path is a folder. A path holds one study, a URL one for each name. StudyError when the folder
        cannot be made.
        """
        folder = Path(".autoplan") / name
        if study is not None and "://" in study:
            return cls(study, _made(folder), name)
        if study is None:
            return cls(f"sqlite:///{(_made(folder) / 'study.db').absolute()}", folder, name)
        path = Path(study)
        is_file = path.suffix in (".db", ".sqlite", ".sqlite3")
        folder, database = (path.with_suffix(""), path) if is_file else (path, path / "study.db")
        return cls(f"sqlite:///{database.absolute()}", _made(folder), "autoplan")

    def __str__(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @property
    def file(self) -> Path | None:
        """The database's file; None where it is not a file."""
        if not self.url.startswith("sqlite:///") or self.url.endswith(":memory:"):
            return None
        return Path(str(self))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the study for the length of the block. StudyError where another process has locked it."""
        lock = self.lock()
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def lock(self) -> IO[bytes] | None:
        """Hold the study for this process, until the lock is closed or the process ends, however it ends.

        StudyError when another process has it: with that one's number. None where there is no file to lock.
        """
        if not self.url.startswith("sqlite:///"):
            return None
        try:
            lock = os.fdopen(os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        except OSError as error:
            raise StudyError(f"the folder {self.folder} of the study cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                holder = lock.read(20).decode(errors="replace").strip()
            process = f" ({holder})" if holder.isdigit() else ""
            raise StudyError(
                f"the study at {self} is in use by another process{process}; wait for it, or use --study PATH"
            ) from None
        except OSError as error:
            lock.close()
            raise StudyError(
                f"the folder {self.folder} of the study cannot be locked: {error.strerror}; use --study with a folder "
                "on a local disk"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the lock holds without its owner's number
            lock.truncate()
            lock.write(str(os.getpid()).encode())
            lock.flush()
        return lock


def study_name(stem: str, identity: StudyIdentity) -> str:
    """Return a name that only this source, hardware and space have, so that a second run finds its own study."""
    text = json.dumps(identity, sort_keys=True)
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def differences(known: StudyIdentity, wanted: StudyIdentity, prefix: str = "") -> list[str]:
    """Return what differs between two identities, as `key: before -> now`. Nested mappings are compared key by key.

    A key that only one of them has counts as a difference: a study of a version that did not record it is another one.
    """
    found = []
    for key in dict.fromkeys((*wanted, *known)):
        before, now = known.get(key), wanted.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{prefix}{key}.")
        elif before != now:
            found.append(f"{prefix}{key}: {_brief(before)} -> {_brief(now)}")
    return found


def _brief(value: Any) -> str:
    if value is None:
        return "not recorded"
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) == _DIGEST_LENGTH and set(text) <= set("0123456789abcdef"):
        return f"sha256 {text[:12]}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"the folder {folder} for the study cannot be made: {error.strerror}; use --study PATH"
        ) from None
    return folder
