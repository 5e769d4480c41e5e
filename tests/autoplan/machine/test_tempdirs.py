from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.machine import tempdirs
from autoplan.machine.tempdirs import LockedFolder

MAKES = """
import sys
from autoplan.machine.tempdirs import LockedFolder
folder = LockedFolder("autoplan-data-")
(folder.path / "large").write_text("data")
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def temporary_place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other():
    """Another process that has locked a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    with process:
        yield process
        process.kill()


def test_folders_of_a_killed_process_are_removed_by_the_next_process(temporary_place, other):
    folder = Path(other.stdout.readline().strip())
    tempdirs.remove_abandoned()
    assert (folder / "large").exists()
    other.kill()
    other.wait()
    tempdirs.remove_abandoned()
    assert not folder.exists()


def test_remove_deletes_the_folder(temporary_place):
    held = LockedFolder()
    (held.path / "inside").mkdir()
    tempdirs.remove_abandoned()
    assert (held.path / "inside").is_dir()
    held.remove()
    assert list(temporary_place.iterdir()) == []


def test_a_folder_without_a_lock_file_is_not_removed(temporary_place):
    for name in ("autoplan-study-1", "other-1"):
        (temporary_place / name).mkdir()
    (temporary_place / "other-1" / "in-use").touch()
    (temporary_place / "autoplan-file").touch()
    (temporary_place / "autoplan-being-made").mkdir()
    (temporary_place / "autoplan-being-made" / ".in-use").touch()
    tempdirs.remove_abandoned()
    assert len(list(temporary_place.iterdir())) == 4
