"""What every command shares: arguments behind `--`, errors as messages and exit codes, and one format of output.

Nothing heavy is imported here: `autoplan --help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

INTERRUPTED = 130
CRASHED = 1
_FORMAT = "autoplan.format"
_SOURCE_ARGUMENTS = "autoplan.source_arguments"
_USAGE_ERROR: Any = typer.BadParameter.__base__
"""What unknown options are, too. Some versions of typer bring their own click, and export this alone of it."""


class Format(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


class SourceCommand(TyperCommand):
    """A command whose arguments behind the first `--` belong to the user's script, and reach it untouched."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the script's arguments aside before the others are parsed."""
        own, behind = args, []
        if "--" in args:
            cut = args.index("--")
            own, behind = args[:cut], args[cut + 1 :]
        ctx.meta[_SOURCE_ARGUMENTS] = behind
        try:
            return list(super().parse_args(ctx, _with_module(own)))
        except _USAGE_ERROR as error:
            option = getattr(error, "option_name", None)
            if option is not None and not getattr(error, "possibilities", None):
                error.message += f". If it is the script's own, it goes behind --, as in: -- {option} …"
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show where the script's arguments go."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


def _with_module(words: list[str]) -> list[str]:
    """`-m package.module`, as Python takes it or quoted as one word, as the one word that sources are named by."""
    at = next((at for at, word in enumerate(words) if word == "-m" or word.startswith("-m ")), len(words))
    if at == len(words) or words[at:] == ["-m"]:
        return words
    named, behind = (words[at], at + 1) if words[at] != "-m" else (f"-m {words[at + 1]}", at + 2)
    return [*words[:at], *words[behind:], "--", named]


class Commands(TyperGroup):
    """The one place where an error becomes a message on stderr and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which they are written, which is the order in which they are used."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; AutoplanError and Ctrl-C end it with their exit codes."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            tell_error(ctx, "Interrupted", "interrupted before there was an answer", INTERRUPTED)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            # Imported late: the package of this class brings NumPy along, and `--help` shall not wait for that.
            from autoplan.errors import AutoplanError

            if not isinstance(error, AutoplanError):
                raise
            tell_error(ctx, type(error).__name__, str(error), error.exit_code)
            raise typer.Exit(error.exit_code) from None


def source_arguments(ctx: typer.Context) -> list[str]:
    """What stood behind `--`."""
    return list(ctx.meta[_SOURCE_ARGUMENTS])


def remember_format(ctx: typer.Context, value: Format) -> Format:
    """Note the format while options are parsed, so that an error is printed in it."""
    ctx.meta[_FORMAT] = value
    return value


def tell_error(ctx: typer.Context, kind: str, message: str, exit_code: int) -> None:
    """A message on stderr; under `--format json` the same as the one JSON document on stdout."""
    if ctx.meta.get(_FORMAT) is Format.JSON:
        with contextlib.suppress(OSError):  # stdout may be what the error is about
            tell_json({"schema": 1, "error": {"kind": kind, "message": message, "exit_code": exit_code}})
    with contextlib.suppress(OSError):  # a terminal that hung up takes stderr along
        typer.echo(f"error: {message}", err=True)


def tell_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Within: SIGTERM, and SIGHUP of a terminal that hangs up, interrupt as Ctrl-C does, rather than end all at once.

    A signal that is ignored stays so, as SIGHUP under nohup.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    in_main = threading.current_thread() is threading.main_thread()
    wanted = (signal.SIGTERM, signal.SIGHUP) if in_main else ()
    before = {number: signal.getsignal(number) for number in wanted}
    taken = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


@contextlib.contextmanager
def answering(written_to: Path | None = None) -> Iterator[None]:
    """Within an answer is printed. OutputError where stdout cannot take it, with the file that has the plan.

    A reader that left early is no fault, and passes.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        from autoplan.errors import OutputError

        _silence(sys.stdout)
        kept = f"; the plan is in {written_to}" if written_to else ""
        raise OutputError(f"the answer could not be printed: {(error.strerror or str(error)).lower()}{kept}") from None


def _silence(stream: Any) -> None:
    """What a stream still holds would fail again when the process ends: let it go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def tell_crash(error: BaseException) -> int:
    """A fault of autoplan itself: a short message, the whole story in a file. Returns the exit code."""
    story = "".join(traceback.format_exception(error))
    summary = traceback.format_exception_only(error)[-1].strip()
    where = _kept(story)
    with contextlib.suppress(OSError):
        typer.echo(
            f"error: autoplan itself failed ({summary}). This is a fault of autoplan, not of your input: "
            f"please report it with {where}.",
            err=True,
        )
    return CRASHED


def _kept(story: str) -> str:
    """Write `story` where it can be found; the place, or the story itself when it can be written nowhere."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    report = f"command: {sys.argv}\npython: {sys.version}\n\n{story}"
    places: list[Callable[[], str]] = [lambda: ".autoplan", tempfile.gettempdir]
    for place in places:
        try:
            folder = Path(place())  # on a full disk there may be no temporary folder
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(report, encoding="utf-8")
        except OSError:
            continue
        return f"the file {folder / name}"
    return f"this:\n{story}"
