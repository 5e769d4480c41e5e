"""Audit events of real operations, as actions."""

import os
import shutil
import sqlite3
import sys

import pytest

from autoplan.worker.files import events
from autoplan.worker.files.events import ActionKind

SEEN = []
LISTENING = []


def listen(event, arguments):
    if LISTENING and event in events.EVENTS:
        SEEN.extend(events.actions(event, arguments))


sys.addaudithook(listen)


@pytest.fixture
def actions_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(operation):
        SEEN.clear()
        LISTENING.append(True)
        try:
            operation()
        finally:
            LISTENING.clear()
        return [(one.kind, events.shown(one.target)) for one in SEEN]

    return run


@pytest.mark.parametrize(
    ("mode", "kind"), [("w", ActionKind.REPLACES), ("a", ActionKind.UPDATES), ("x", ActionKind.UPDATES)]
)
def test_a_file_that_is_opened_for_writing(actions_of, mode, kind):
    assert actions_of(lambda: open("a.txt", mode).close()) == [(kind, "a.txt")]


def test_reading_is_no_action(actions_of, tmp_path):
    (tmp_path / "a.txt").write_text("1")
    assert actions_of((tmp_path / "a.txt").read_text) == []


def test_operations_on_files_and_folders(actions_of, tmp_path):
    for name in ("a", "b", "d/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    assert actions_of(lambda: os.remove("a")) == [(ActionKind.REPLACES, "a")]
    assert actions_of(lambda: os.rename("b", "e")) == [(ActionKind.REPLACES, "b"), (ActionKind.REPLACES, "e")]
    assert actions_of(lambda: os.mkdir("f")) == [(ActionKind.CREATES, "f")]
    assert (ActionKind.REPLACES, "d") in actions_of(lambda: shutil.rmtree("d"))
    assert actions_of(lambda: sqlite3.connect("runs.db").close()) == [(ActionKind.UPDATES, "runs.db")]
    assert actions_of(lambda: sqlite3.connect(":memory:").close()) == []


def test_actions_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert events.Action(ActionKind.UPDATES, str(tmp_path / "logs/a.csv")).describe() == "writes logs/a.csv"
    assert events.Action(ActionKind.SENDS, "10.0.0.1:80").describe() == "connects to 10.0.0.1:80"
    assert events.Action(ActionKind.STARTS, "git").describe() == "starts git"
