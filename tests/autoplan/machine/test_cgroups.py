"""Control groups, read from folders that look like /proc and /sys."""

from __future__ import annotations

import pytest

from autoplan.machine import cgroups

SECOND = {
    "proc/self/cgroup": "0::/job/inner\n",
    "sys/fs/cgroup/job/memory.max": "8000\n",
    "sys/fs/cgroup/job/memory.current": "5000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 3000\ninactive_file 1500\nactive_file 500\n",
    "sys/fs/cgroup/job/memory.events": "low 0\noom 5\noom_kill 4\n",
    "sys/fs/cgroup/job/inner/memory.max": "max\n",
    "sys/fs/cgroup/job/inner/memory.current": "4000\n",
    "sys/fs/cgroup/job/inner/memory.events": "low 0\noom 3\noom_kill 2\n",
}
FIRST = {
    "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "700000\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
    "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n",
}


@pytest.fixture
def machine(tmp_path):
    """Write files under a root folder."""

    def make(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "limits", "free", "kills"),
    [
        pytest.param(SECOND, [8000], [8000 - (5000 - 1500)], 2, id="second"),
        pytest.param(FIRST, [8000], [8000 - (5000 - 1000)], 6, id="first"),
        pytest.param({"proc/self/cgroup": "0::/gone\n"}, [], [], None, id="none"),
        pytest.param({}, [], [], None, id="not Linux"),
    ],
)
def test_limits_free_memory_and_kills_are_read(machine, files, limits, free, kills):
    root = machine(files)
    assert cgroups.limits_bytes(root) == limits
    assert cgroups.free_bytes(root) == free
    assert cgroups.kills(root) == kills


def test_kills_of_the_machine_are_returned_if_the_group_does_not_count_them(machine):
    root = machine({"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free_pages 12\noom_kill 3\n"})
    assert cgroups.kills(root) == 3


def test_usage_above_the_limit_leaves_no_free_memory(machine):
    root = machine(SECOND | {"sys/fs/cgroup/job/memory.current": "12000\n"})
    assert cgroups.free_bytes(root) == [0]
