from __future__ import annotations

import errno
import fcntl
import os

import pytest

from autoplan.errors import StudyError
from autoplan.tuning.trials.storage import StudyPlace, differences, study_name

IDENTITY = {"source": "a" * 64, "hardware": {"name": "local", "chip": "a chip"}, "knobs": {"precision": ["float32"]}}


def test_where_a_study_lives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_default = StudyPlace.choose(None, "train-1234")
    assert str(by_default) == str(tmp_path / ".autoplan" / "train-1234" / "study.db")
    assert by_default.folder.is_dir()
    assert by_default.file == tmp_path / ".autoplan" / "train-1234" / "study.db"
    file = StudyPlace.choose("studies.db", "train-1234")
    assert (str(file), str(file.folder)) == (str(tmp_path / "studies.db"), "studies")
    url = StudyPlace.choose("postgresql://host/db", "train-1234")
    assert (url.url, str(url.folder), url.file) == ("postgresql://host/db", ".autoplan/train-1234", None)
    assert StudyPlace.choose("sqlite:///:memory:", "train-1234").file is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match=r"cannot be made: Not a directory; use --study PATH"):
        StudyPlace.choose(str(tmp_path / "file" / "study"), "a-study")


def test_a_study_in_use_is_refused_with_who_has_it(tmp_path):
    place = StudyPlace.choose(str(tmp_path / "study"), "a-study")
    with place.held(), pytest.raises(StudyError) as caught, place.held():
        pass
    assert str(caught.value) == (
        f"the study at {place} is in use by another process ({os.getpid()}); wait for it, or use --study PATH"
    )
    with place.held():
        pass


def test_a_lock_without_its_owners_number_is_a_lock(tmp_path):
    place = StudyPlace.choose(str(tmp_path / "study"), "a-study")
    (place.folder / "lock").write_text("")
    with (place.folder / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StudyError, match="in use by another process; wait"), place.held():
            pass


def test_a_disk_that_knows_no_locks_is_not_a_study_in_use(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    place = StudyPlace.choose(str(tmp_path / "study"), "a-study")
    with pytest.raises(StudyError, match=r"cannot be locked: No locks available; use --study with a folder on a local"):
        place.lock()


def test_a_study_without_a_file_needs_no_lock():
    assert StudyPlace("postgresql://host/db", None, "a-study").lock() is None


def test_a_name_follows_from_what_is_tuned():
    assert study_name("train", IDENTITY) == study_name("train", dict(reversed(IDENTITY.items())))
    assert study_name("train", IDENTITY) != study_name("train", IDENTITY | {"hardware": "gpu"})
    assert study_name("train", IDENTITY).startswith("train-")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"source": "b" * 64}, ["source: sha256 aaaaaaaaaaaa -> sha256 bbbbbbbbbbbb"]),
        ({"hardware": {"name": "local", "chip": "another"}}, ["hardware.chip: a chip -> another"]),
        (
            {"knobs": {"precision": ["float32"], "global": [8]}, "keras": "3.15.1"},
            ["knobs.global: not recorded -> [8]", "keras: not recorded -> 3.15.1"],
        ),
        ({"hardware": "cpu"}, ['hardware: {"name": "local", "chip": "a chip"} -> cpu']),
        ({"source": "x" * 100}, [f"source: sha256 aaaaaaaaaaaa -> {'x' * 57}..."]),
    ],
)
def test_each_difference_is_told_by_its_key(changes, told):
    assert differences(IDENTITY, IDENTITY | changes) == told


def test_what_was_recorded_and_is_not_known_now_differs_too():
    assert differences({"keras": "3.14.0"}, {}) == ["keras: 3.14.0 -> not recorded"]
