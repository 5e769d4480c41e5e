"""Reports as they are printed."""

from __future__ import annotations

import io
from typing import Any

from autoplan.reports import plan_table


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(shown: Any, stream: io.StringIO | None = None, width: int | None = None) -> str:
    """Return what a stream shows of a report; by default a pipe."""
    stream = stream or io.StringIO()
    plan_table.print_to(plan_table.open_console(stream, width), shown)
    return stream.getvalue()
