"""What a job prints: read off a pipe as it comes, and kept in a file of bounded size.

The job writes into a pipe that always has a reader, so it never waits for a disk, and a full disk never fails it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from io import FileIO
from pathlib import Path

HEAD_BYTES = 2**18
TAIL_BYTES = 2**18
_TAIL_READ_BYTES = 4000
_PIPE_BYTES = 2**20
_MOST_LEFT_BYTES = 2**26
"""So much is still read of what a job had printed when it ended: what escaped it may print for ever."""


class BoundedLog:
    """A file that keeps the first and the last of what is written, and says how much was left out between.

    It follows what the file held before. A file that cannot be written ends the keeping, not the writing: the last is
    kept in memory in any case.

    written_to  where it is kept; None where it is not
    """

    def __init__(self, path: Path | None, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self.written_to: Path | None = None
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._file: FileIO | None = None
        self._start = self._length = self._seen = 0
        self._last = bytearray()
        if path is not None:
            with contextlib.suppress(OSError):
                self._file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
                self._start = self._file.seek(0, os.SEEK_END)
                self.written_to = path

    def write(self, data: bytes) -> None:
        """Take what was printed. Never raises for want of space."""
        self._seen += len(data)
        self._last += data
        if len(self._last) > 2 * self._tail_bytes:
            del self._last[: -self._tail_bytes]
        self._append(data)
        if self._length > self._head_bytes + 2 * self._tail_bytes:
            self._leave_out()

    def tail(self) -> str:
        """Return the end of what was printed."""
        return bytes(self._last[-_TAIL_READ_BYTES:]).decode(errors="replace")

    def close(self) -> None:
        """Close the output."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            rest = memoryview(data)
            while rest:
                written = self._file.write(rest) or 0
                self._length += written
                rest = rest[written:]
        except OSError:
            self._give_up()

    def _leave_out(self) -> None:
        """Cut the file back to its head, and put the last of what was printed behind it."""
        if self._file is None:
            return
        tail = bytes(self._last[-self._tail_bytes :])
        left_out = self._seen - self._head_bytes - len(tail)
        try:
            self._file.seek(self._start + self._head_bytes)
            self._file.truncate()
        except OSError:
            self._give_up()
            return
        self._length = self._head_bytes
        self._append(b"\n[... %d bytes of output are left out here ...]\n" % left_out + tail)

    def _give_up(self) -> None:
        self.close()
        self.written_to = None


class JobOutput:
    """The reading end of a job's stdout and stderr. A context manager; `writer` is the end that the job gets."""

    def __init__(self, path: Path | None) -> None:
        self.log = BoundedLog(path)
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe is a courtesy of Linux
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.open = True

    def __enter__(self) -> JobOutput:
        return self

    def __exit__(self, *error: object) -> None:
        self.hand_over()
        self.finish()
        os.close(self._reader)
        self.log.close()

    def fileno(self) -> int:
        """Return the descriptor to wait for: readable when there is output or the last writer has gone."""
        return self._reader

    def hand_over(self) -> None:
        """The job has its end; ours is closed, so that the last writer's leaving can be seen."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def take(self) -> int:
        """Read what is there, one pipeful at most; how many bytes that was. At the end `open` becomes false."""
        try:
            data = os.read(self._reader, _PIPE_BYTES)
        except BlockingIOError:
            return 0
        self.open = bool(data)
        self.log.write(data)
        return len(data)

    def finish(self) -> None:
        """Read what is left without waiting for more."""
        left = _MOST_LEFT_BYTES
        while self.open and left > 0:
            taken = self.take()
            if taken == 0:
                return
            left -= taken
