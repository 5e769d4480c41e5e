"""How a job ended that did not answer: by its own doing, or by something that says nothing of what was asked.

A process that was killed cannot say what it held. So it is watched while it runs, and with it the memory of the machine
and the kernel's count of those that it killed for want of memory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil

from autoplan.formatting import size
from autoplan.machine import cgroups, processes
from autoplan.plan.records import FailureKind

SCARCE_BYTES = 2**27
"""With less than this left the kernel is about to kill somebody, and not always who took the memory."""
WATCHING_SHARE = 0.02
"""Share of a job's time that weighing its processes may take."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that somebody sends; the others follow from what a process does."""


@dataclass
class Watched:
    """A job's processes and the memory of the machine, in bytes, as seen while it ran.

    free_at_start, free   what could be had when the job started, and at the last look
    held                  proportional set size of its processes at the last look
    peak                  the most that it would take by itself: pages that it shares with its server count whole, and a
                          peak between two looks, as every micro-step has one, is not missed
    """

    free_at_start: int
    kills_at_start: int | None
    free: int
    held: int = 0
    peak: int = 0
    _weights: dict[int, int] = field(default_factory=dict)
    _weigh_at: float = 0.0
    _seen: dict[int, psutil.Process] = field(default_factory=dict)

    @classmethod
    def start(cls) -> Watched:
        """Start watching before the job has a process."""
        free = processes.free_bytes()
        return cls(free, cgroups.kills(), free)

    def look(self, pid: int) -> None:
        """Look at the processes of the job whose first process is `pid`, and at the machine's memory."""
        found = processes.tree(pid)
        self._seen.update((process.pid, process) for process in found)
        self.free = processes.free_bytes()
        pids = [process.pid for process in found]
        if time.monotonic() >= self._weigh_at or self.scarce or any(one not in self._weights for one in pids):
            self._weigh(pids)
        self.held = sum(self._weights[one] for one in pids)
        others = sum(self._weights[one] for one in pids if one != pid)
        self.peak = max(self.peak, processes.standalone_bytes(pid, ever=True) + others)

    def _weigh(self, pids: Iterable[int]) -> None:
        """Measure what the processes hold now. Not too often: the kernel walks all their pages while they wait."""
        started = time.monotonic()
        self._weights = {pid: processes.proportional_bytes(pid) for pid in pids}
        ended = time.monotonic()
        self._weigh_at = ended + (ended - started) / WATCHING_SHARE

    def end(self, pid: int) -> None:
        """End the job: its tree, its group, and what was seen of it before it slipped out of both."""
        processes.kill_tree(pid)
        processes.kill(process for process in self._seen.values() if process.is_running())

    @property
    def scarce(self) -> bool:
        """Whether the machine's memory ran out since the job started."""
        return self.free < SCARCE_BYTES and self.free_at_start > 2 * SCARCE_BYTES

    @property
    def took_it(self) -> bool:
        """Whether the job holds most of the memory that was used since it started."""
        return 2 * self.held >= self.free_at_start - self.free

    def kernel_killed(self) -> bool | None:
        """Return whether the kernel's out-of-memory killer acted since the start; None where that cannot be read."""
        now = cgroups.kills()
        return None if now is None or self.kills_at_start is None else now > self.kills_at_start

    def figures(self) -> str:
        """Return the memory that the job held and the memory that was left, for a message."""
        return f"it held {size(self.held)}, and {size(self.free)} of this machine's memory were left"


@dataclass(frozen=True)
class Ending:
    """What ended a job. outside: it says nothing of what was asked, which is worth another try."""

    kind: FailureKind
    message: str
    outside: bool = False

    @property
    def of_memory(self) -> bool:
        """Whether memory ran out."""
        return self.kind in (FailureKind.OOM, FailureKind.COMPILE_OOM)


def over_limit(watched: Watched, limit_bytes: int | None, phase: str) -> Ending | None:
    """Return how to end a job that holds too much memory, or on whose machine memory ran out; else None."""
    if limit_bytes is not None and watched.peak > limit_bytes:
        return Ending(
            _memory_kind(phase),
            f"held {size(watched.peak)} of {size(limit_bytes)} in phase {phase}",
        )
    if not watched.scarce:
        return None
    text = f"ended in phase {phase} before the kernel's out-of-memory killer acted: {watched.figures()}"
    if watched.took_it:
        return Ending(_memory_kind(phase), text)
    return Ending(FailureKind.CRASH, f"{text}; other processes took the rest", outside=True)


def of_status(status: int | None, watched: Watched, phase: str) -> Ending:
    """Name the end of a process by its wait status; None: the server that would have reported it is gone, too."""
    if status is None:
        return _ended(f"the worker server ended in phase {phase}", watched, phase)
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        return Ending(FailureKind.CRASH, f"left with exit code {code} in phase {phase}, without a result")
    number = os.WTERMSIG(status)
    text = f"ended by {signal.Signals(number).name} in phase {phase}"
    if number == signal.SIGKILL:
        return _ended(text, watched, phase)
    if from_outside(number):
        return Ending(FailureKind.CRASH, f"{text}, which was sent from outside", outside=True)
    return Ending(FailureKind.CRASH, text)


def from_outside(number: int) -> bool:
    """Return whether a signal is sent by a person or another process, and is not a result of the process's own acts."""
    return number in _FROM_OUTSIDE


def _ended(text: str, watched: Watched, phase: str) -> Ending:
    """Return the reason for a SIGKILL: its own memory, the memory of other processes, or a signal from outside."""
    text = f"{text}; {watched.figures()}"
    for_memory = watched.kernel_killed()
    if for_memory is None:
        for_memory = watched.scarce
        text += (
            ""
            if for_memory
            else "; it may have been the kernel's out-of-memory killer, whose counters are not readable here"
        )
    if not for_memory:
        return Ending(FailureKind.CRASH, f"{text}; the signal came from outside", outside=True)
    text += "; it was the kernel's out-of-memory killer"
    if watched.scarce and not watched.took_it:
        return Ending(FailureKind.CRASH, f"{text}, because of other processes", outside=True)
    return Ending(_memory_kind(phase), text)


def _memory_kind(phase: str) -> FailureKind:
    return FailureKind.COMPILE_OOM if phase == "compile" else FailureKind.OOM
