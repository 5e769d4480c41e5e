"""Files that a job changes, removes or leaves alone."""

import os
import shutil

import pytest

from autoplan.machine import kept_files
from autoplan.machine.kept_files import KeptFiles, put_back


@pytest.fixture
def folders(tmp_path):
    temporary, own = tmp_path / "job", tmp_path / "own"
    temporary.mkdir()
    (own / "logs").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.txt", "logs/1", "logs/2"):
        (own / name).write_text(f"before {name}")
        os.utime(own / name, (1000, 1000))
    return temporary, own


def test_changed_and_removed_files_are_put_back_with_their_times(folders):
    temporary, own = folders
    kept = KeptFiles(temporary)
    assert all(kept.keep(own / name) for name in ("a.txt", "b.txt", "c.txt", "logs"))
    (own / "a.txt").write_text("by the job")
    assert kept.keep(own / "a.txt")  # the first copy stays
    (own / "b.txt").unlink()
    shutil.rmtree(own / "logs")
    (own / "new.txt").write_text("stays")
    restored = put_back(temporary)
    assert sorted(restored) == sorted(own / name for name in ("a.txt", "b.txt", "logs/1", "logs/2"))
    assert (own / "a.txt").read_text() == "before a.txt"
    assert (own / "a.txt").stat().st_mtime == 1000
    assert (own / "logs/2").read_text() == "before logs/2"
    assert (own / "new.txt").exists()
    assert put_back(temporary) == []


def test_files_that_are_too_large_are_not_kept(folders, monkeypatch):
    temporary, own = folders
    monkeypatch.setattr(kept_files, "MOST_BYTES", 15)
    kept = KeptFiles(temporary)
    assert kept.keep(own / "a.txt")
    assert not kept.keep(own / "b.txt")
    (own / "b.txt").write_text("by the job")
    assert put_back(temporary) == []


def test_a_journal_that_ends_in_the_middle_of_a_line_is_read_up_to_there(folders):
    temporary, own = folders
    KeptFiles(temporary).keep(own / "a.txt")
    with (temporary / "kept-files" / "journal").open("a") as journal:
        journal.write('["2", "/no')
    (own / "a.txt").unlink()
    assert put_back(temporary) == [own / "a.txt"]


def test_a_job_that_kept_nothing_puts_nothing_back(tmp_path):
    assert put_back(tmp_path) == []
