"""Watches what a trial writes, and refuses writes that would change the user's files while a fit runs.

Python reports each operation before it happens (an audit event). Libraries that write without Python's own functions
are patched to report theirs (`native_writers`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from autoplan.machine.kept_files import KeptFiles
from autoplan.worker.files import native_writers, open_files
from autoplan.worker.files.events import EVENTS, Action, ActionKind, actions, shown

_MOST_PATHS = 200
_CACHES = ("~/.cache", "~/.keras", "~/.config/matplotlib", "~/.triton", "~/.nv", "~/.local/share/jupyter")
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "KERAS_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_SYSTEM = ("/dev", "/proc", "/sys")
_BYTECODE = f"{os.sep}__pycache__{os.sep}"


class CallbackWrites(BaseException):
    """A callback was about to write, and was stopped. Not an `Exception`, so that the callback does not handle it.

    position  position of the callback among those of the fit
    """

    def __init__(self, position: int, action: Action) -> None:
        super().__init__(f"callback {position} {action.describe()}")
        self.position, self.action = position, action


class OverwriteRefused(PermissionError):
    """The training's own code, outside of callbacks, was about to change a file that is too large to put back."""


class WriteGuard:
    """Records writes, and refuses some while a fit runs.

    Before the fit nothing is refused, because scripts create the folders and files that they need. During a fit, a
    callback may not write, connect to another machine or start a program. Other code of the training (its data, its
    `train_step`) may. A file that existed before the tuning is first copied (`KeptFiles`), to be put back when the job
    has ended; if it is too large for that, the training's own code may not replace it during the fit.

    Never counted: folders of this job, caches of libraries, devices, and new files in the system's temporary folder.

    own_folders   folders of this job
    temporary     the system's temporary folder
    tuning_began  seconds since the epoch; files that have changed since then are written by trials, and are not kept
    kept          keeps copies of files; None keeps none

    before_fit  files that the script wrote before its fit, in order, and whether each is put back
    during_fit  the same for the training's own code during the fit
    """

    def __init__(
        self,
        own_folders: Sequence[str],
        *,
        temporary: str | None = None,
        tuning_began: float | None = None,
        kept: KeptFiles | None = None,
    ) -> None:
        self._kept = kept
        self._own = tuple(os.path.realpath(folder) for folder in own_folders)
        self._caches = _cache_folders()
        self._system_temporary = os.path.realpath(temporary or tempfile.gettempdir())
        self._began = time.time() if tuning_began is None else tuning_began
        self._callbacks: Sequence[Any] = ()
        self._in_fit = False
        self._local = threading.local()
        self._refused: CallbackWrites | None = None
        self.before_fit: dict[str, bool] = {}
        self.during_fit: dict[str, bool] = {}

    def install(self) -> None:
        """Begin to watch. An audit hook cannot be removed, so the process must end with the job."""
        sys.addaudithook(self._hook)
        native_writers.patch(self.consider)

    @contextlib.contextmanager
    def fit(self, callbacks: Sequence[Any]) -> Iterator[None]:
        """Refuse writes in this context. CallbackWrites if one of the callbacks writes."""
        native_writers.patch(self.consider)
        with self._unwatched():
            open_files.redirect(self._is_of_the_user)
        self._callbacks, self._in_fit = callbacks, True
        try:
            yield
        finally:
            self._in_fit = False

    def raise_refused(self) -> None:
        """Raise a refusal that the fit did not raise: it occurred in another thread, or the callback has handled it."""
        if self._refused is not None:
            raise self._refused

    def forget_refused(self) -> None:
        """Forget the last refusal."""
        self._refused = None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and not getattr(self._local, "unwatched", False):
            with self._unwatched():
                for action in actions(event, arguments):
                    self._consider(action, sys._getframe(1))

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Do not watch what this thread does in this context."""
        self._local.unwatched = True
        try:
            yield
        finally:
            self._local.unwatched = False

    def consider(self, action: Action) -> None:
        """Record an action that is about to happen, or refuse it."""
        self._consider(action, sys._getframe(1))

    def _consider(self, action: Action, frame: FrameType | None) -> None:
        if action.on_files and self._is_no_file_of_the_user(action):
            return
        position = _position(frame, self._callbacks) if self._in_fit else None
        if position is not None:
            self._refused = CallbackWrites(position, action)
            raise self._refused
        if not action.on_files or action.kind is ActionKind.CREATES:
            return
        existed = self._existed_before(action.target)
        put_back = existed and self._kept is not None and self._kept.keep(Path(action.target))
        if self._in_fit and action.kind is ActionKind.REPLACES and existed and not put_back:
            raise OverwriteRefused(
                f"{shown(action.target)} would be replaced by the training's own code during the fit, and it is too "
                "large to be put back after the trial. Use --scratch, which runs each trial in an empty working "
                "directory, or write elsewhere if AUTOPLAN_TRIAL is set"
            )
        _add(self.during_fit if self._in_fit else self.before_fit, action.target, put_back)

    def _is_of_the_user(self, path: str) -> bool:
        return _BYTECODE not in path and not _is_in(path, (*_SYSTEM, *self._own, *self._caches))

    def _is_no_file_of_the_user(self, action: Action) -> bool:
        path = os.path.realpath(action.target)
        if not self._is_of_the_user(path):
            return True
        if action.kind is ActionKind.CREATES and os.path.lexists(path):  # it fails, or does nothing
            return True
        temporary = (self._system_temporary,)
        if not _is_in(path, temporary) or _is_in(str(Path.cwd()), temporary):
            return False
        return not self._existed_before(path)

    def _existed_before(self, path: str) -> bool:
        """Return whether a file existed before the tuning and has not been written since."""
        try:
            found = os.lstat(path)
        except OSError:
            return False
        return found.st_mtime < self._began  # not st_ctime: a file that was put back has a new one


def _position(frame: FrameType | None, callbacks: Sequence[Any]) -> int | None:
    """Return the position of the callback whose code is running: the outermost one on the stack; else None.

    A method has its callback as `self`. A function that a callback was given is called by Keras's `CallbackList`, whose
    loop variable is `callback`.
    """
    found = None
    while frame is not None:
        values = frame.f_locals
        running = (values.get("self"), values.get("callback"))
        for position, callback in enumerate(callbacks):
            if any(callback is one for one in running):
                found = position
        frame = frame.f_back
    return found


def _add(paths: dict[str, bool], path: str, put_back: bool) -> None:
    if len(paths) < _MOST_PATHS:
        paths.setdefault(shown(path), put_back)


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _cache_folders() -> tuple[str, ...]:
    named = [os.environ[name] for name in _CACHE_VARIABLES if os.environ.get(name)]
    return tuple(os.path.realpath(Path(folder).expanduser()) for folder in (*_CACHES, *named))


def guard_of(options: Mapping[str, Any]) -> WriteGuard:
    """Return the guard of a job with these options."""
    folders = [options.get(name) for name in ("temporary", "scratch", "cache_dir")]
    own = options.get("temporary")
    return WriteGuard(
        [folder for folder in folders if folder],
        temporary=None if own is None else str(Path(own).parent),
        tuning_began=options.get("tuning_began"),
        kept=None if own is None else KeptFiles(Path(own)),
    )
