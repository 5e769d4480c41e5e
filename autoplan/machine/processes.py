"""Measures memory and CPU use of processes, sets malloc to keep freed memory, and ends process trees."""

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
"""Up to this size, mapped files count as libraries."""
KEEP_FREED_MEMORY = (
    (-4, 0, "M_MMAP_MAX: no allocation has its own mapping"),
    (-1, -1, "M_TRIM_THRESHOLD: the heap does not shrink"),
    (-8, 1, "M_ARENA_MAX: all threads share one arena, which grows without a limit"),
)
"""Arguments of glibc's `mallopt` (`malloc.h`), each with its effect."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def can_keep_freed_memory() -> bool:
    """Return whether the C library can keep freed memory; glibc can."""
    return sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")


def retain_freed_memory() -> bool:
    """Let the C library keep freed memory for the next allocation, and never return it to the kernel.

    This helps processes that free and allocate the same large buffers repeatedly. It must be called before other
    threads allocate, because these would have their own arenas, which return large buffers. Returns False if the C
    library has no such setting.
    """
    if not can_keep_freed_memory():
        return False
    library = ctypes.CDLL(None)
    results = [library.mallopt(name, value) for name, value, _ in KEEP_FREED_MEMORY]
    return all(result == 1 for result in results)


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and all its descendants that are alive; an empty list if the process has ended."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process in bytes: each shared page counts by its share.

    Forked workers share their libraries with the server, so the resident size would count these several times. Without
    Linux this is the resident size; 0 if the process has ended.
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


def standalone_bytes(pid: int, *, ever: bool = False) -> int:
    """Return the bytes that a process would use on its own: pages that it shares with its parent count fully.

    ever   the maximum so far, which the kernel records, so that no peak between two calls is missed

    Mapped files count up to `LIBRARY_BYTES`; more of them are data, which the kernel drops when memory is short. A
    forked process has touched few pages of its libraries, so those that its parent has touched count. Without Linux
    this is the present resident size; 0 if the process has ended.
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
    """Return whether a process is a fork of its parent: a program that was started has its own command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


def _status(pid: int) -> dict[str, int]:
    """Return the numbers in `/proc/<pid>/status`, with sizes in bytes; an empty dictionary if it does not exist."""
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
    """Return the available memory in bytes: of this machine, or less if a control group has less."""
    return min([int(psutil.virtual_memory().available), *cgroups.free_bytes()])


class CpuContention:
    """Measures how many CPU cores other processes keep busy, from its creation on."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._others = _others_seconds()

    def busy_processors(self) -> float:
        """Return the mean number of CPU cores that processes other than this one and its descendants kept busy."""
        seconds = time.perf_counter() - self._started
        return max(0.0, _others_seconds() - self._others) / seconds if seconds > 0 else 0.0


def _others_seconds() -> float:
    """Return the CPU time of other processes since the machine started."""
    every = psutil.cpu_times()
    idle = every.idle + getattr(every, "iowait", 0.0)
    # On Linux the time of guests is also counted as user time.
    guests = getattr(every, "guest", 0.0) + getattr(every, "guest_nice", 0.0)
    own = 0.0
    for process in tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            own += sum(process.cpu_times()[:4])  # user and system time of the process and of its ended children
    return sum(every) - idle - guests - own


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each process, and wait up to 5 s until they have ended."""
    targets = list(processes)
    for process in targets:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(targets, timeout=5)


def kill_tree(pid: int) -> None:
    """End a process, its process group and all its descendants in any session."""
    found = tree(pid)
    if pid > 1 and pid != os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    kill(found)


def kill_descendants(keep: Iterable[int] = ()) -> None:
    """End all descendants of this process except those in the trees of `keep`."""
    spared = {process.pid for pid in keep for process in tree(pid)}
    kill(process for process in psutil.Process().children(recursive=True) if process.pid not in spared)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends in any way. Does nothing without Linux."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def dying_with_parent() -> Iterator[None]:
    """Call `die_with_parent` for this context only, in which the process cannot watch for the end of its parent."""
    die_with_parent()
    try:
        yield
    finally:
        _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that it can end them. Does nothing without Linux."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
