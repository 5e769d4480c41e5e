"""Facts about this machine: the memory limit under control groups."""

from pathlib import Path

import psutil
import pytest

from autoplan.machine import this_machine


def group(root: Path, lines: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "1048576\n"}, 2**20),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 2**20),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "4194304\n", "sys/fs/cgroup/a/b/memory.max": "1048576\n"}, 2**20),
        (
            "9:cpu,cpuacct:/x\n4:memory:/job\n",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1048576\n",
            },
            2**20,
        ),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, None),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/gone\n", {}, None),
    ],
)
def test_usable_memory_is_the_minimum_of_physical_memory_and_control_group_limits(tmp_path, lines, limits, expected):
    root = group(tmp_path / "root", lines, limits)
    assert this_machine.memory_bytes(root) == (psutil.virtual_memory().total if expected is None else expected)


def test_without_control_groups_physical_memory_is_usable(tmp_path):
    assert this_machine.memory_bytes(tmp_path) == psutil.virtual_memory().total
