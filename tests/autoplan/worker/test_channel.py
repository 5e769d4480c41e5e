"""Messages from a job's process to its client."""

import errno
import json
import os
import socket

import pytest

from autoplan.errors import SourceError
from autoplan.plan.records import FailureKind
from autoplan.worker.channel import Channel, disk_is_full


class Left(Exception):
    """In place of the end of the process."""


@pytest.fixture
def channel(monkeypatch):
    """A channel whose answers raise `Left`, and `channel.messages()`: what the client has received."""

    def leave(status):
        assert status == 0
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = Channel(ours)
        made.messages = lambda: [json.loads(line) for line in theirs.recv(2**16).splitlines()]
        yield made


def test_every_message_is_one_line_of_json(channel):
    channel.started()
    channel.phase("build")
    assert channel.messages() == [{"event": "started", "pid": os.getpid()}, {"event": "phase", "name": "build"}]


def test_a_result_names_what_was_imported_and_ends_the_process(channel):
    with pytest.raises(Left):
        channel.result({"seconds": 1.5})
    imported, result = channel.messages()
    assert imported["event"] == "imported"
    assert "keras" not in imported["names"] or isinstance(imported["names"], list)
    assert result == {"event": "result", "value": {"seconds": 1.5}}


def test_messages_of_keras_are_sent_without_their_bold_print(channel):
    with pytest.raises(Left):
        channel.failure(FailureKind.CRASH, "\x1b[1mbad\x1b[0m shape", outside=True)
    (failure,) = channel.messages()
    assert failure == {"event": "failure", "kind": "crash", "message": "bad shape", "outside": True}


def test_an_error_of_the_source_is_sent_by_its_class(channel):
    with pytest.raises(Left):
        channel.error(SourceError("no function build_model()"))
    assert channel.messages() == [{"event": "error", "error": "SourceError", "message": "no function build_model()"}]


def test_a_traceback_goes_to_the_log_as_it_was_when_the_channel_was_made(capfd, monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = Channel(ours)
        monkeypatch.setattr("sys.stderr", None)  # as a script may do
        try:
            raise ValueError("the script's own")
        except ValueError as error:
            made.log(error)
    assert "ValueError: the script's own" in capfd.readouterr().err


def test_a_full_disk_is_found_among_causes_and_by_its_words():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wrapped = RuntimeError("could not save")
    wrapped.__cause__ = full
    assert disk_is_full(full)
    assert disk_is_full(wrapped)
    assert disk_is_full(OSError(f"Unable to write (errno message: {os.strerror(errno.ENOSPC)})"))
    assert not disk_is_full(OSError(errno.ENOENT, "no such file"))
    assert not disk_is_full(RuntimeError(os.strerror(errno.ENOSPC)))
