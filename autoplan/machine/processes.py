"""Process trees: how much memory they hold, and how to end them for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from autoplan.machine import cgroups

LIBRARY_BYTES = 2**29
"""So much of what a process maps from files is taken for libraries."""
KEEP_FREED_MEMORY = (
    (-4, 0, "M_MMAP_MAX: no piece is mapped by itself"),
    (-1, -1, "M_TRIM_THRESHOLD: none is given back"),
    (-8, 1, "M_ARENA_MAX: all threads share one arena, which grows without a limit"),
)
"""Arguments of glibc's `mallopt` (`malloc.h`), and what each is for."""
NOT_KEPT = "freed memory cannot be kept: the C library of this system has no setting for it"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_keep_freed_memory() -> bool:
    """Whether this process's C library lets it be told to keep what is freed: glibc does."""
    return sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for the next allocation, and never give it back to the kernel.

    For processes that free and allocate the same large pieces over and over. To be called before other threads
    allocate: those have arenas of their own by then, which give back what is larger than an arena. False where the C
    library cannot be told.
    """
    if not can_keep_freed_memory():
        return False
    library = ctypes.CDLL(None)
    taken = [library.mallopt(name, value) for name, value, _ in KEEP_FREED_MEMORY]
    return all(one == 1 for one in taken)


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its living descendants; empty when it is gone."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def proportional_bytes(pid: int) -> int:
    """Proportional set size of one process in bytes: shared pages count by their share.

    Forked workers share their libraries with the server, so resident size would count those again and again.
    Falls back to resident size where the kernel does not tell (not Linux); 0 when the process is gone.
    """
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def alone_bytes(pid: int, *, ever: bool = False) -> int:
    """What one process would hold by itself, in bytes: what it shares with its parent counts whole.

    ever   the most so far: the kernel keeps that, so that no peak is missed between two looks

    Mapped files count up to the size of libraries: what is beyond are data, which the kernel drops when it wants room.
    A forked process has touched few pages of its libraries itself; by itself it would have touched its parent's.
    Falls back to the present resident size where the kernel does not tell (not Linux); 0 when the process is gone.
    """
    figures = _status(pid)
    if {"VmRSS", "VmHWM", "RssFile", "PPid"} <= figures.keys():
        own_files = figures["RssFile"]
        shared = _status(figures["PPid"]).get("RssFile", 0) if _is_fork(pid, figures["PPid"]) else 0
        libraries = min(LIBRARY_BYTES, max(own_files, shared))
        return max(0, figures["VmHWM" if ever else "VmRSS"] - own_files) + libraries
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _is_fork(pid: int, parent: int) -> bool:
    """Whether a process still runs what its parent runs: a program that was started anew has a command of its own."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


def _status(pid: int) -> dict[str, int]:
    """The numbers in `/proc/<pid>/status`, sizes in bytes; empty where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    figures = {}
    for name, _, value in (line.partition(":") for line in lines):
        number, _, unit = value.strip().partition(" ")
        if number.isdigit():
            figures[name] = int(number) * (1024 if unit == "kB" else 1)
    return figures


def free_bytes() -> int:
    """Memory that can be had at once, in bytes: of this machine, or less where a control group leaves less."""
    return min([int(psutil.virtual_memory().available), *cgroups.free_bytes()])


class Neighbours:
    """How much of this machine's processors other processes take while this one works, from its making on."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._others = _others_seconds()

    def busy_processors(self) -> float:
        """As many as others kept busy on average; this process and its descendants are no others."""
        seconds = time.perf_counter() - self._started
        return max(0.0, _others_seconds() - self._others) / seconds if seconds > 0 else 0.0


def _others_seconds() -> float:
    """Processor time that others have taken since the machine started."""
    every = psutil.cpu_times()
    idle = every.idle + getattr(every, "iowait", 0.0)
    # On Linux time of guests is counted as that of users, too.
    guests = getattr(every, "guest", 0.0) + getattr(every, "guest_nice", 0.0)
    own = 0.0
    for process in tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            own += sum(process.cpu_times()[:4])  # user and system, its own and of children that ended
    return sum(every) - idle - guests - own


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL each and wait until none is left running (5 s at most)."""
    targets = list(processes)
    for process in targets:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(targets, timeout=5)


def kill_tree(pid: int) -> None:
    """End a process, its process group and every descendant, in whatever session they are."""
    found = tree(pid)
    if pid > 1 and pid != os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    kill(found)


def kill_descendants(keep: Iterable[int] = ()) -> None:
    """End every descendant of this process outside the trees of `keep`."""
    spared = {process.pid for pid in keep for process in tree(pid)}
    kill(process for process in psutil.Process().children(recursive=True) if process.pid not in spared)


def die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent ends, `kill -9` included. Elsewhere nothing happens."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def dying_with_parent() -> Iterator[None]:
    """The same for the length of a block: for what takes long and cannot listen meanwhile for its parent's end."""
    die_with_parent()
    try:
        yield
    finally:
        _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Linux: descendants whose parent ends become children of this process, so that none can escape it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
