"""Reads the stdout and stderr of a job from a pipe and stores them in a log file of bounded size.

The job writes into a pipe that always has a reader, so a slow or full disk neither delays the job nor makes it fail.
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
"""Limit on output read after a job has ended: a process that it left behind may print forever."""


class BoundedLog:
    """A file that stores the beginning and the end of the output, with the number of bytes left out between them.

    The output is appended to the file. If the file cannot be written, the log continues in memory, which always holds
    the end of the output.

    written_to  path of the file; None where it cannot be written
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
        """Add output. A full disk raises no error."""
        self._seen += len(data)
        self._last += data
        if len(self._last) > 2 * self._tail_bytes:
            del self._last[: -self._tail_bytes]
        self._append(data)
        if self._length > self._head_bytes + 2 * self._tail_bytes:
            self._leave_out()

    def tail(self) -> str:
        """Return the end of the output."""
        return bytes(self._last[-_TAIL_READ_BYTES:]).decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
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
        """Truncate the file to its head and append the end of the output."""
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
    """The reading end of a job's stdout and stderr, as a context manager; the job gets `writer`."""

    def __init__(self, path: Path | None) -> None:
        self.log = BoundedLog(path)
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        with contextlib.suppress(OSError, AttributeError):  # only Linux has larger pipes
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
        """Return the descriptor to wait for: readable when there is output or the last writer has closed it."""
        return self._reader

    def hand_over(self) -> None:
        """Close our copy of the writing end, so that end of file is seen when the job's last writer closes it."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def take(self) -> int:
        """Read the available output, at most one pipeful, and return its bytes; at the end `open` becomes false."""
        try:
            data = os.read(self._reader, _PIPE_BYTES)
        except BlockingIOError:
            return 0
        self.open = bool(data)
        self.log.write(data)
        return len(data)

    def finish(self) -> None:
        """Read the remaining output without waiting for more."""
        left = _MOST_LEFT_BYTES
        while self.open and left > 0:
            taken = self.take()
            if taken == 0:
                return
            left -= taken
