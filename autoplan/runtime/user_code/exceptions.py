"""Walks the causes of an exception, so that failures are classified by types instead of by words in a message."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import TracebackType


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions that led to it, each once, the last one raised first.

    Contexts that `raise ... from None` hides are included: Keras raises exceptions again in this way, with the
    arguments of the call in the message.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        group = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        left += [*group, one.__cause__, one.__context__]


def raising_entry(error: BaseException) -> TracebackType | None:
    """Return the last entry of an exception's traceback; None for an exception that was never raised."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return entry


def raised_by_python(error: BaseException) -> bool:
    """Return whether a `raise` statement raised an exception, rather than compiled code that Python called."""
    entry = raising_entry(error)
    if entry is None:
        return False
    return dis.opname[entry.tb_frame.f_code.co_code[entry.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
