"""How jobs ended: real processes that are killed, and memory as the system would show it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from autoplan.jobs import exit_status
from autoplan.jobs.exit_status import SCARCE_BYTES, Watched
from autoplan.machine import cgroups, processes
from autoplan.plan.records import FailureKind
from tests.builders.observations import GIB


def watched(*, free_at_start=8 * GIB, free=8 * GIB, held=0, kills=0):
    return Watched(free_at_start, kills, free, held=held, peak=held)


@pytest.fixture
def counted(monkeypatch):
    """Set what the kernel has counted of its kills."""
    return lambda kills: monkeypatch.setattr(cgroups, "kills", lambda: kills)


def status_of(number):
    """The wait status of a real process that a signal ended."""
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(number)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = -number
    return status


SHORT = SCARCE_BYTES // 2


@pytest.mark.parametrize(
    ("kills", "seen", "kind", "outside", "words"),
    [
        pytest.param(0, watched(held=GIB), FailureKind.CRASH, True, "another process sent the signal", id="somebody"),
        pytest.param(
            1, watched(free=SHORT, held=7 * GIB), FailureKind.OOM, False, "it used 7.00 GiB, and 64.0 MiB", id="its own"
        ),
        pytest.param(
            1,
            watched(free=SHORT, held=GIB),
            FailureKind.CRASH,
            True,
            "because other processes used the memory",
            id="others",
        ),
        pytest.param(
            1, watched(held=GIB), FailureKind.OOM, False, "the kernel's out-of-memory killer", id="faster than looks"
        ),
        pytest.param(
            None, watched(held=GIB), FailureKind.CRASH, True, "may have been the kernel's", id="nobody counts"
        ),
        pytest.param(None, watched(free=SHORT, held=7 * GIB), FailureKind.OOM, False, "GiB", id="nobody counts, short"),
    ],
)
def test_a_kill_is_told_apart_by_memory(counted, kills, seen, kind, outside, words):
    counted(kills)
    found = exit_status.of_status(status_of(signal.SIGKILL), seen, "measure")
    assert (found.kind, found.outside) == (kind, outside)
    assert found.message.startswith("ended by SIGKILL in phase measure; it used ")
    assert words in found.message


def test_memory_that_runs_out_while_compiling_is_said_so(counted):
    counted(1)
    assert exit_status.of_status(status_of(signal.SIGKILL), watched(), "compile").kind is FailureKind.COMPILE_OOM


@pytest.mark.parametrize(
    ("number", "outside"),
    [(signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)],
)
def test_other_signals_are_sent_or_follow_from_what_a_process_does(counted, number, outside):
    counted(0)
    found = exit_status.of_status(status_of(number), watched(), "setup")
    assert (found.kind, found.outside) == (FailureKind.CRASH, outside)
    assert found.message.startswith(f"ended by {number.name} in phase setup")


def test_a_server_that_is_gone_says_nothing_of_its_job(counted):
    counted(0)
    found = exit_status.of_status(None, watched(), "measure")
    assert found.outside
    assert found.message.startswith("the worker server ended in phase measure")


def test_an_exit_code_is_the_jobs_own():
    found = exit_status.of_status(7 << 8, watched(), "setup")
    assert (found.message, found.outside) == ("exited with code 7 in phase setup, without a result", False)


def test_the_limit_of_a_job_comes_first():
    assert exit_status.over_limit(watched(held=GIB), GIB, "measure") is None
    found = exit_status.over_limit(watched(held=GIB + 2**20, free=SHORT), GIB, "measure")
    assert (found.kind, found.message) == (FailureKind.OOM, "used 1.00 GiB of the allowed 1.00 GiB in phase measure")


def test_a_machine_without_memory_ends_a_job_before_the_kernel_ends_somebody():
    own = exit_status.over_limit(watched(free=SHORT, held=6 * GIB), 64 * GIB, "compile")
    assert (own.kind, own.outside) == (FailureKind.COMPILE_OOM, False)
    others = exit_status.over_limit(watched(free=SHORT, held=GIB), 64 * GIB, "measure")
    assert (others.kind, others.outside) == (FailureKind.CRASH, True)
    assert others.message == (
        "stopped in phase measure because the machine was out of memory: it used 1.00 GiB, and 64.0 MiB of this "
        "machine's memory were free; other processes used the rest"
    )


def test_a_machine_that_was_full_before_is_left_to_its_kernel():
    assert (
        exit_status.over_limit(watched(free_at_start=SCARCE_BYTES, free=SHORT, held=GIB), 64 * GIB, "measure") is None
    )


def test_what_a_real_process_holds_is_seen():
    code = "x = bytearray(2**28); x[::4096] = b'x' * len(x[::4096]); print('ready', flush=True); input()"
    before = Watched.start()
    assert 0 < before.free <= psutil.virtual_memory().total
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        holder.stdout.readline()
        before.look(holder.pid)
        assert 2**28 < before.held < 2**29
        holder.kill()
    before.look(holder.pid)
    assert before.held == 0
    assert before.peak > 2**28


def test_what_slipped_out_of_its_tree_is_ended_too():
    """A daemon whose parent has gone belongs to nobody, but it was seen before."""
    code = "import subprocess as s; print(s.Popen(['sleep', '60'], start_new_session=True).pid, flush=True); input()"
    seen = Watched.start()
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        daemon = psutil.Process(int(parent.stdout.readline()))
        seen.look(parent.pid)
        parent.kill()
    assert daemon.is_running()
    seen.end(parent.pid)
    deadline = time.monotonic() + 10
    while daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


def test_free_memory_is_no_more_than_the_least_of_machine_and_groups(monkeypatch):
    monkeypatch.setattr(cgroups, "free_bytes", lambda: [5 * 2**20, 7 * 2**20])
    assert processes.free_bytes() == 5 * 2**20
