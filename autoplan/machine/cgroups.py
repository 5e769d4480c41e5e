"""Reads Linux control groups (versions 1 and 2): memory limits of this process, and counts of out-of-memory kills.

The argument `root` is the folder that contains `proc` and `sys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class _Version:
    """Names of the files of a version of control groups.

    reclaimable  the line of memory.stat with the inactive file pages
    """

    mount: str
    limit: str
    usage: str
    reclaimable: str
    kills: str


_FIRST = _Version(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)
_SECOND = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events")


def limits_bytes(root: Path = ROOT) -> list[int]:
    """Return the memory limits of every control group of this process, up to the root group."""
    return [limit for version, folder in _groups(root) if (limit := _limit(version, folder)) is not None]


def free_bytes(root: Path = ROOT) -> list[int]:
    """Return the free memory under each limit; inactive file pages count as free: the kernel drops them first."""
    left = []
    for version, folder in _groups(root):
        limit, usage = _limit(version, folder), _number(folder / version.usage)
        if limit is not None and usage is not None:
            reclaimable = _counter(folder / "memory.stat", version.reclaimable) or 0
            left.append(max(0, limit - max(0, usage - reclaimable)))
    return left


def kills(root: Path = ROOT) -> int | None:
    """Return the number of out-of-memory kills in this process's group.

    If the group does not count them, return those of the whole machine; None if that does not count them either.
    """
    for version, folder in _groups(root):
        counted = _counter(folder / version.kills, "oom_kill")
        if counted is not None:
            return counted
    return _counter(root / "proc/vmstat", "oom_kill")


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """Yield the folder of each group with a memory controller, from this process's own group to the root."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            version = _SECOND
        elif "memory" in controllers.split(","):
            version = _FIRST
        else:
            continue
        base = root / version.mount
        here = base / group.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(base):
                break
            yield version, folder


def _limit(version: _Version, folder: Path) -> int | None:
    """Return the limit of one group; None for "max" and for the large number that version 1 uses instead."""
    limit = _number(folder / version.limit)
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _counter(file: Path, name: str) -> int | None:
    """Return the number of a line `name number`."""
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
