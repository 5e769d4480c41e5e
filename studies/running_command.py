"""A command that is watched: what it says line by line, which processes it has, and what is left of it at its end."""

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
    """What became of a command. left: processes of it that were still running some seconds after its end."""

    code: int
    output: str
    seconds: float
    left: int


class RunningCommand:
    """A command in a lab. Its descendants are known by a mark in their environment, whatever they did to hide."""

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
        """Until a line matches; StudyFailed when the command ends or the time is over before."""
        deadline = time.monotonic() + seconds
        while not any(re.search(pattern, line) for line in list(self._lines)):
            if time.monotonic() > deadline or not self._reader.is_alive():
                self.end()
                raise harness.StudyFailed(f"no line matched {pattern!r}:\n{self._output()[-3000:]}")
            time.sleep(0.05)

    def lives_for(self, seconds: float) -> bool:
        """Wait so long; whether it still runs then."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def family(self) -> list[psutil.Process]:
        """Every living process of the command, itself included."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def server(self) -> psutil.Process:
        """The process that forks the jobs."""
        own = psutil.Process(self.process.pid)
        return next(child for child in _pythons(own) if "autoplan.worker" in child.cmdline())

    def worker(self) -> psutil.Process:
        """The job that runs."""
        deadline = time.monotonic() + 30
        while not (jobs := self.server().children()):
            if time.monotonic() > deadline:
                raise harness.StudyFailed("no job was running")
            time.sleep(0.02)
        return jobs[0]

    def wait(self, seconds: float = LONGEST_SECONDS) -> EndedCommand:
        """Until it ends by itself; StudyFailed when it does not."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise harness.StudyFailed(f"not done after {seconds:.0f} s:\n{self._output()[-3000:]}") from None
        taken = time.monotonic() - self._started
        left = self._left()
        self._reader.join(timeout=5)
        return EndedCommand(self.process.returncode, self._output(), taken, left)

    def end(self) -> None:
        """SIGKILL to all of it."""
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


def heed_signals() -> None:
    """As from a terminal: what starts a study in the background may ignore these, and its commands would inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def records_in(database: Path) -> list[tuple[str, str]]:
    """The finished trials of a study as it lies on the disk, in order: configuration and record, each as JSON.

    [] where there is no study yet; sqlite3.Error where it cannot be read.
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
    """Children, or where the command was started through another, that one's."""
    children = process.children()
    return [*children, *(grandchild for child in children for grandchild in child.children())]
