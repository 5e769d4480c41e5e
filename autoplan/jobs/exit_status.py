"""Samples the memory of a running job, and classifies why it ended without an answer: crash, out of memory, signal.

A killed process cannot report its memory. So the job is watched while it runs, together with the machine's free memory
and the kernel's count of out-of-memory kills.
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
"""Free memory below which the kernel is about to kill a process, not always the one that took the memory."""
WATCHING_SHARE = 0.02
"""Largest share of a job's time that measuring the memory of its processes may take."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that are sent from outside; the others result from a process's own action."""


@dataclass
class Watched:
    """A job's processes and the memory of the machine, in bytes, sampled while it runs.

    free_at_start, free   available memory when the job started, and at the last sample
    held                  proportional set size of its processes at the last sample
    peak                  peak memory of the job alone: pages shared with its server count fully, and a peak between
                          two samples, as in every micro-step, is included
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
        """Return the state before the job has a process."""
        free = processes.free_bytes()
        return cls(free, cgroups.kills(), free)

    def look(self, pid: int) -> None:
        """Sample the memory of the job whose first process is `pid`."""
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
        """Measure the memory of processes, not too often: they wait while the kernel walks all their pages."""
        started = time.monotonic()
        self._weights = {pid: processes.proportional_bytes(pid) for pid in pids}
        ended = time.monotonic()
        self._weigh_at = ended + (ended - started) / WATCHING_SHARE

    def end(self, pid: int) -> None:
        """Kill the job: its process tree, its group, and its processes seen earlier that have left both."""
        processes.kill_tree(pid)
        processes.kill(process for process in self._seen.values() if process.is_running())

    @property
    def scarce(self) -> bool:
        """Return whether the machine's memory has run out since the job started."""
        return self.free < SCARCE_BYTES and self.free_at_start > 2 * SCARCE_BYTES

    @property
    def took_it(self) -> bool:
        """Return whether the job holds most of the memory taken since it started."""
        return 2 * self.held >= self.free_at_start - self.free

    def kernel_killed(self) -> bool | None:
        """Return whether the kernel has killed a process for memory since the start; None where it keeps no count."""
        now = cgroups.kills()
        return None if now is None or self.kills_at_start is None else now > self.kills_at_start

    def figures(self) -> str:
        """Return the job's memory and the free memory, for a message."""
        return f"it used {size(self.held)}, and {size(self.free)} of this machine's memory were free"


@dataclass(frozen=True)
class Ending:
    """The cause that ended a job. outside: an external cause, so the job is worth another try."""

    kind: FailureKind
    message: str
    outside: bool = False

    @property
    def of_memory(self) -> bool:
        """Return whether the job ran out of memory."""
        return self.kind in (FailureKind.OOM, FailureKind.COMPILE_OOM)


def over_limit(watched: Watched, limit_bytes: int | None, phase: str) -> Ending | None:
    """Return the ending of a job over its memory limit or on a machine without free memory; None otherwise."""
    if limit_bytes is not None and watched.peak > limit_bytes:
        return Ending(
            _memory_kind(phase),
            f"used {size(watched.peak)} of the allowed {size(limit_bytes)} in phase {phase}",
        )
    if not watched.scarce:
        return None
    message = f"stopped in phase {phase} because the machine was out of memory: {watched.figures()}"
    if watched.took_it:
        return Ending(_memory_kind(phase), message)
    return Ending(FailureKind.CRASH, f"{message}; other processes used the rest", outside=True)


def of_status(status: int | None, watched: Watched, phase: str) -> Ending:
    """Return the ending of a process by its wait status; None: the worker server has ended too."""
    if status is None:
        return _killed(f"the worker server ended in phase {phase}", watched, phase)
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        return Ending(FailureKind.CRASH, f"exited with code {code} in phase {phase}, without a result")
    number = os.WTERMSIG(status)
    message = f"ended by {signal.Signals(number).name} in phase {phase}"
    if number == signal.SIGKILL:
        return _killed(message, watched, phase)
    if from_outside(number):
        return Ending(FailureKind.CRASH, f"{message}; another process sent the signal", outside=True)
    return Ending(FailureKind.CRASH, message)


def from_outside(number: int) -> bool:
    """Return whether a signal is sent from outside rather than caused by the process itself."""
    return number in _FROM_OUTSIDE


def _killed(message: str, watched: Watched, phase: str) -> Ending:
    """Return the ending by SIGKILL or with the server: out of memory, for the job's or others' use, or from outside."""
    message = f"{message}; {watched.figures()}"
    for_memory = watched.kernel_killed()
    if for_memory is None:
        for_memory = watched.scarce
        message += (
            "" if for_memory else "; it may have been the kernel's out-of-memory killer, whose count is not available"
        )
    if not for_memory:
        return Ending(FailureKind.CRASH, f"{message}; another process sent the signal", outside=True)
    message += "; it was the kernel's out-of-memory killer"
    if watched.scarce and not watched.took_it:
        return Ending(FailureKind.CRASH, f"{message}, because other processes used the memory", outside=True)
    return Ending(_memory_kind(phase), message)


def _memory_kind(phase: str) -> FailureKind:
    return FailureKind.COMPILE_OOM if phase == "compile" else FailureKind.OOM
