"""Linux control groups: the memory that they leave to this process, and how often the kernel killed for want of it.

Versions 1 and 2. `root` is where `/proc` and `/sys` are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class _Version:
    """Where a version of control groups keeps its figures.

    reclaimable  the line of memory.stat for idle file pages
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
    """Memory limits of every control group that this process is in, up to the root group."""
    return [limit for version, folder in _groups(root) if (limit := _limit(version, folder)) is not None]


def free_bytes(root: Path = ROOT) -> list[int]:
    """What is left under each of those limits; idle file pages count as left, for the kernel gives them up first."""
    left = []
    for version, folder in _groups(root):
        limit, usage = _limit(version, folder), _number(folder / version.usage)
        if limit is not None and usage is not None:
            reclaimable = _counter(folder / "memory.stat", version.reclaimable) or 0
            left.append(max(0, limit - max(0, usage - reclaimable)))
    return left


def kills(root: Path = ROOT) -> int | None:
    """How often the kernel has killed a process of this one's group for want of memory, whoever wanted it.

    Where the group does not count, those of the whole machine; None where nobody does.
    """
    for version, folder in _groups(root):
        counted = _counter(folder / version.kills, "oom_kill")
        if counted is not None:
            return counted
    return _counter(root / "proc/vmstat", "oom_kill")


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """The folder of each group that limits memory, this process's own first."""
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
    """The limit of one group. "max" and version 1's huge number are no limit."""
    limit = _number(folder / version.limit)
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _counter(file: Path, name: str) -> int | None:
    """The figure of a line `name figure`."""
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
