"""Files that are open before a fit."""

import os

from autoplan.worker.files import open_files


def test_a_file_open_for_writing_is_redirected_and_others_are_not(tmp_path):
    names = ("written", "appended", "both", "read", "own")
    for name in names:
        (tmp_path / name).write_text("before ")
    modes = ("r+b", "ab", "r+b", "rb", "ab")
    files = {name: open(tmp_path / name, mode) for name, mode in zip(names, modes, strict=True)}
    files["written"].close()
    files["written"] = os.fdopen(os.open(tmp_path / "written", os.O_WRONLY), "wb")
    ours = {str(tmp_path / name) for name in names[:-1]}
    redirected = open_files.redirect(ours.__contains__)
    assert sorted(redirected) == sorted(str(tmp_path / name) for name in ("written", "appended"))
    for name in ("written", "appended", "both", "own"):
        files[name].seek(0, os.SEEK_END)
        files[name].write(b"after")
        files[name].close()
    assert (tmp_path / "written").read_text() == (tmp_path / "appended").read_text() == "before "
    assert (tmp_path / "both").read_text() == (tmp_path / "own").read_text() == "before after"
    assert files["read"].read() == b"before "
    files["read"].close()
