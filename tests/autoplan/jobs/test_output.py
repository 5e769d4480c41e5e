"""What jobs print: all of it while it is little, its head and its tail when it is much, and never a job that waits."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

from autoplan.jobs.output import HEAD_BYTES, TAIL_BYTES, BoundedLog, JobOutput


def lines(first, last):
    return b"".join(b"line %07d\n" % number for number in range(first, last))


def test_little_is_kept_whole_behind_what_was_there(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"of an earlier job\n")
    log = BoundedLog(path)
    log.write(b"one\n")
    log.write(b"two\n")
    assert path.read_bytes() == b"of an earlier job\none\ntwo\n"
    assert (log.tail(), log.written_to) == ("one\ntwo\n", path)
    log.close()


def test_of_much_the_head_and_the_tail_are_kept_and_the_rest_is_counted(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"earlier\n")
    log = BoundedLog(path, head_bytes=1300, tail_bytes=2600)
    printed = lines(0, 20_000)
    longest = 0
    for start in range(0, len(printed), 997):
        log.write(printed[start : start + 997])
        longest = max(longest, path.stat().st_size)
    log.close()
    kept = path.read_bytes()
    assert longest <= len(b"earlier\n") + 1300 + 2 * 2600 + 997 + 100
    assert kept.startswith(b"earlier\n" + printed[:1300])
    head, left_out, tail = re.fullmatch(
        rb"(.*)\n\[\.\.\. (\d+) bytes of output are left out here \.\.\.\]\n(.*)", kept, re.DOTALL
    ).groups()
    assert printed.endswith(tail)
    assert len(tail) >= 2600
    assert len(head) - len(b"earlier\n") + int(left_out) + len(tail) == len(printed)
    assert printed.endswith(log.tail().encode())
    assert len(log.tail()) >= 2600


def test_one_piece_larger_than_everything_is_cut_too(tmp_path):
    log = BoundedLog(tmp_path / "log", head_bytes=100, tail_bytes=100)
    log.write(lines(0, 1000))
    assert (tmp_path / "log").stat().st_size < 300
    log.close()


def test_a_full_disk_ends_the_keeping_and_nothing_else():
    log = BoundedLog(Path("/dev/full"))
    log.write(b"something\n")
    log.write(b"else\n")
    assert (log.written_to, log.tail()) == (None, "something\nelse\n")
    log.close()


def test_a_place_that_is_not_there_keeps_the_last_in_memory(tmp_path):
    log = BoundedLog(tmp_path / "gone" / "log")
    log.write(b"something\n")
    assert (log.written_to, log.tail()) == (None, "something\n")


def read_all(output):
    while output.open:
        select.select([output], [], [], 5)
        output.take()


def test_a_process_that_prints_a_gigabyte_ends_and_leaves_a_small_file(tmp_path):
    code = "import os\nfor _ in range(1024): os.write(1, b'x' * 2**20)\nos.write(2, b'the end')\n"
    with JobOutput(tmp_path / "log") as output:
        printing = subprocess.Popen([sys.executable, "-c", code], stdout=output.writer, stderr=output.writer)
        output.hand_over()
        read_all(output)
        assert printing.wait(timeout=30) == 0
        assert output.log.tail().endswith("xthe end")
    size = (tmp_path / "log").stat().st_size
    assert HEAD_BYTES + TAIL_BYTES < size < HEAD_BYTES + 2 * TAIL_BYTES + 2**21
    assert (tmp_path / "log").read_bytes().endswith(b"xthe end")


def test_what_was_printed_just_before_the_end_is_not_lost(tmp_path):
    with JobOutput(tmp_path / "log") as output:
        os.write(output.writer, b"last words\n")
    assert (tmp_path / "log").read_bytes() == b"last words\n"


def test_a_writer_that_never_ends_is_not_waited_for(tmp_path):
    with JobOutput(tmp_path / "log") as output:
        endless = subprocess.Popen(["yes"], stdout=output.writer)
        output.hand_over()
        select.select([output], [], [], 5)
        output.finish()
        assert output.open
    assert endless.wait(timeout=10) != 0
