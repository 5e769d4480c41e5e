"""Memory and CPU time of processes, and the end of process trees."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from autoplan.machine import processes

MIB = 2**20

HOLD = """
import sys
hoard = bytearray(256 * 2**20)
del hoard
print("let go", flush=True)
sys.stdin.read()
"""

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel keeps the most on Linux alone")


@pytest.fixture
def holder():
    """A process that used 256 MiB only briefly."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"let go\n"
        yield process
        process.kill()


@linux
def test_the_peak_memory_of_a_process_includes_peaks_between_two_calls(holder):
    now, most = processes.standalone_bytes(holder.pid), processes.standalone_bytes(holder.pid, ever=True)
    assert now < 128 * MIB
    assert 256 * MIB < most < 384 * MIB


LOOK = """
import time
from autoplan.machine import processes
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
look = processes.CpuContention()
started = time.perf_counter()
work(0.5)
print(look.busy_processors(), 0.5 / (time.perf_counter() - started))
"""


@linux
def test_the_cpu_time_of_other_processes_excludes_ones_own():
    """Two processes work for half a second at the same time; each measures the other but not itself."""
    start = partial(subprocess.Popen, [sys.executable, "-c", LOOK], stdout=subprocess.PIPE, text=True)
    with start() as one, start() as other:
        figures = [[float(figure) for figure in process.communicate()[0].split()] for process in (one, other)]
    for others, own in figures:
        assert others <= (os.cpu_count() or 1) - own + 0.2
    assert max(others for others, _ in figures) > 0.2


PAGES = """
import resource, sys
from autoplan.machine import processes
if sys.argv[1] == "keep":
    assert processes.retain_freed_memory()
import jax

@jax.jit
def step(x, w):
    y = x @ w  # 64 MiB
    return ((y + 1.0) @ x).sum()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x, w = jax.numpy.ones((4096, 64)), jax.numpy.ones((64, 4096))
counts = []
for _ in range(64):  # in the first ones, few or many, the heap grows to what it needs
    before = faults()
    step(x, w).block_until_ready()
    counts.append(faults() - before)
print(min(counts))
"""


@pytest.mark.skipif(not processes.can_keep_freed_memory(), reason="another C library decides what is given back")
def test_kept_freed_memory_causes_no_page_faults():
    """A step of a compiled program with a temporary of 64 MiB, once the heap has grown, with and without."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    paged, kept = (
        int(subprocess.run([sys.executable, "-c", PAGES, how], capture_output=True, check=True, env=environment).stdout)
        for how in ("give back", "keep")
    )
    pages = 64 * MIB // mmap.PAGESIZE
    assert paged > pages
    assert kept < pages / 10


FORK = """
import os
from autoplan.machine import processes
hoard = bytearray(os.urandom(64 * 2**20))
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(read, 1)
    os._exit(0)
print(processes.standalone_bytes(os.getpid()), processes.standalone_bytes(pid), processes.proportional_bytes(pid))
os.write(write, b"x")
os.waitpid(pid, 0)
"""


@linux
def test_standalone_memory_of_a_fork_includes_pages_of_its_parent(root):
    """A fork counts as if it had loaded its libraries and created its arrays itself."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, cwd=root)
    parent, child, proportional = map(int, done.stdout.split())
    assert child == pytest.approx(parent, abs=32 * MIB)
    assert proportional < 64 * MIB < child


@linux
def test_mapped_files_count_up_to_the_size_of_libraries(tmp_path, monkeypatch):
    """The kernel drops mapped files when memory is short."""
    monkeypatch.setattr(processes, "LIBRARY_BYTES", 0)
    before = processes.standalone_bytes(os.getpid())
    data = tmp_path / "data"
    data.write_bytes(b"x" * (64 * MIB))
    with data.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        assert processes.standalone_bytes(os.getpid()) - before < 8 * MIB


def test_a_process_that_has_ended_uses_no_memory(holder):
    holder.kill()
    holder.wait()
    assert processes.standalone_bytes(holder.pid) == 0
    assert processes.standalone_bytes(holder.pid, ever=True) == 0
