"""Run autoplan in the background: read its output line by line, find its processes, and count those it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from studies import harness

_MARK = "AUTOPLAN_STUDY_MARK"
_GRACE_SECONDS = 15.0
LONGEST_SECONDS = 900.0


@dataclass(frozen=True)
class EndedCommand:
    """A command that has ended. `left` counts its processes that still ran some seconds after its end."""

    code: int
    output: str
    seconds: float
    left: int


class RunningCommand:
    """An `autoplan` command that runs in a lab. A mark in the environment identifies all its descendants."""

    def __init__(
        self,
        lab: harness.Lab,
        *command: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self._mark = uuid.uuid4().hex
        own = {"XDG_CACHE_HOME": str(lab.folder / "cache"), "PYTHONPATH": harness.python_path(), _MARK: self._mark}
        self._started = time.monotonic()
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "autoplan", *command],
            cwd=folder or lab.folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **own, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, seconds: float = 300.0) -> None:
        """Wait until a line of the output matches. Raises StudyFailed if the command or the time ends before."""
        deadline = time.monotonic() + seconds
        while not any(re.search(pattern, line) for line in list(self._lines)):
            if time.monotonic() > deadline or not self._reader.is_alive():
                self.end()
                raise harness.StudyFailed(f"no line matched {pattern!r}:\n{self._output()[-3000:]}")
            time.sleep(0.05)

    def lives_for(self, seconds: float) -> bool:
        """Wait for so many seconds. Returns whether the command still runs."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def family(self) -> list[psutil.Process]:
        """Return all running processes of the command, including itself."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def server(self) -> psutil.Process:
        """Return the worker server, which forks the jobs."""
        own = psutil.Process(self.process.pid)
        return next(child for child in _pythons(own) if "autoplan.worker" in child.cmdline())

    def worker(self) -> psutil.Process:
        """Return the process of the current job."""
        deadline = time.monotonic() + 30
        while not (jobs := self.server().children()):
            if time.monotonic() > deadline:
                raise harness.StudyFailed("no job was running")
            time.sleep(0.02)
        return jobs[0]

    def wait(self, seconds: float = LONGEST_SECONDS) -> EndedCommand:
        """Wait until the command ends. Raises StudyFailed, after ending it, if the time is over before."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise harness.StudyFailed(f"still running after {seconds:.0f} s:\n{self._output()[-3000:]}") from None
        taken = time.monotonic() - self._started
        left = self._left()
        self._reader.join(timeout=5)
        return EndedCommand(self.process.returncode, self._output(), taken, left)

    def end(self) -> None:
        """Send SIGKILL to all processes of the command."""
        for process in self.family():
            process.kill()
        self.process.wait()

    def _left(self) -> int:
        deadline = time.monotonic() + _GRACE_SECONDS
        while (family := self.family()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in family:
            process.kill()
        return len(family)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == self._mark
        except (psutil.Error, OSError):
            return False

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as stream:
                self._lines.extend(stream)

    def _output(self) -> str:
        return "".join(self._lines)


def restore_signal_handlers() -> None:
    """Restore the default signal handlers, since commands inherit the signals that a background shell ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def records_in(database: Path) -> list[tuple[str, str]]:
    """Return (configuration, record), both as JSON, for each finished trial of a study's database, in order.

    Returns [] if the study does not exist yet. Raises sqlite3.Error if the database cannot be read.
    """
    if not database.exists():
        return []
    with contextlib.closing(sqlite3.connect(database)) as opened:
        if not opened.execute("select 1 from sqlite_master where name = 'trial_user_attributes'").fetchone():
            return []
        query = "select value_json from trial_user_attributes where key = 'record' order by trial_id"
        texts = [text for (text,) in opened.execute(query)]
    return [(json.dumps(json.loads(text)["config"], sort_keys=True), text) for text in texts]


def _pythons(process: psutil.Process) -> list[psutil.Process]:
    """Return the children and grandchildren: the command may have been started through another program."""
    children = process.children()
    return [*children, *(grandchild for child in children for grandchild in child.children())]
