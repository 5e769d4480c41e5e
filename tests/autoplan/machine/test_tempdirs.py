from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.machine import tempdirs
from autoplan.machine.tempdirs import HeldFolder

MAKES = """
import sys
from autoplan.machine.tempdirs import HeldFolder
folder = HeldFolder("autoplan-data-")
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
    """Another process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    with process:
        yield process
        process.kill()


def test_what_a_killed_process_left_is_removed_by_the_next(temporary_place, other):
    folder = Path(other.stdout.readline().strip())
    tempdirs.remove_abandoned()
    assert (folder / "large").exists()
    other.kill()
    other.wait()
    tempdirs.remove_abandoned()
    assert not folder.exists()


def test_a_folder_is_gone_when_it_is_removed(temporary_place):
    held = HeldFolder()
    (held.path / "inside").mkdir()
    tempdirs.remove_abandoned()
    assert (held.path / "inside").is_dir()
    held.remove()
    assert list(temporary_place.iterdir()) == []


def test_what_has_no_lock_is_left_alone(temporary_place):
    for name in ("autoplan-study-1", "other-1"):
        (temporary_place / name).mkdir()
    (temporary_place / "other-1" / "in-use").touch()
    (temporary_place / "autoplan-file").touch()
    (temporary_place / "autoplan-being-made").mkdir()
    (temporary_place / "autoplan-being-made" / ".in-use").touch()
    tempdirs.remove_abandoned()
    assert len(list(temporary_place.iterdir())) == 4
