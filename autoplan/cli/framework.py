"""Provides the base of all CLI commands: arguments after `--`, errors as messages and exit codes, JSON output.

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
"""Base class of usage errors, also of unknown options. Some versions of typer include click and export only this."""


class Format(StrEnum):
    """The format of a command's output."""

    TEXT = "text"
    JSON = "json"


class SourceCommand(TyperCommand):
    """A command whose arguments after the first `--` are passed to the user's script unchanged."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Separate the script's arguments before the others are parsed."""
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
                error.message += f". If it is an option of the script, put it after --, as in: -- {option} …"
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's parts, with the place of the script's arguments."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


class SettingsCommand(SourceCommand):
    """A command with `--fix` or `--only`, whose help lists the settings of the table of knobs."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the settings below the options."""
        # Imported late: the table imports NumPy, and the help of other commands must not wait for that.
        from autoplan.plan import knobs
        from autoplan.tuning.space import options

        super().format_epilog(ctx, formatter)
        with formatter.section("Settings of --fix"):
            formatter.write_dl(options.described_settings())
        if any(parameter.name == "only" for parameter in self.params):
            with formatter.section("Settings of --only"):
                formatter.write_text(", ".join(knobs.tunable_fields()))


def _with_module(words: list[str]) -> list[str]:
    """Return the words with `-m package.module`, quoted or not, joined into one word that names the source."""
    at = next((at for at, word in enumerate(words) if word == "-m" or word.startswith("-m ")), len(words))
    if at == len(words) or words[at:] == ["-m"]:
        return words
    named, behind = (words[at], at + 1) if words[at] != "-m" else (f"-m {words[at + 1]}", at + 2)
    return [*words[:at], *words[behind:], "--", named]


class Commands(TyperGroup):
    """The group of commands, which turns errors into messages on stderr and exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of their definition, which is the order of use."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; AutoplanError and Ctrl-C end it with their exit codes."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            print_error(ctx, "Interrupted", "interrupted before there was a result", INTERRUPTED)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            # Imported late: this package imports NumPy, and `--help` must not wait for that.
            from autoplan.errors import AutoplanError

            if not isinstance(error, AutoplanError):
                raise
            print_error(ctx, type(error).__name__, str(error), error.exit_code)
            raise typer.Exit(error.exit_code) from None


def source_arguments(ctx: typer.Context) -> list[str]:
    """Return the arguments after `--`."""
    return list(ctx.meta[_SOURCE_ARGUMENTS])


def remember_format(ctx: typer.Context, value: Format) -> Format:
    """Remember the format while options are parsed, so that errors are printed in it."""
    ctx.meta[_FORMAT] = value
    return value


def print_error(ctx: typer.Context, kind: str, message: str, exit_code: int) -> None:
    """Print a message on stderr; with `--format json` also as the one JSON document on stdout."""
    if ctx.meta.get(_FORMAT) is Format.JSON:
        with contextlib.suppress(OSError):  # stdout itself may be the cause of the error
            print_json({"schema": 1, "error": {"kind": kind, "message": message, "exit_code": exit_code}})
    with contextlib.suppress(OSError):  # stderr fails once its terminal is closed
        typer.echo(f"error: {message}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP interrupt as Ctrl-C does within the block, instead of ending the process at once.

    An ignored signal stays ignored, such as SIGHUP under nohup.
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
    """Raise an OutputError, which names the plan's file, where stdout cannot take the output of the block.

    A reader that closed the pipe early is not an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        from autoplan.errors import OutputError

        _silence(sys.stdout)
        plan = f"; the plan is in {written_to}" if written_to else ""
        raise OutputError(f"the result could not be printed: {(error.strerror or str(error)).lower()}{plan}") from None


def _silence(stream: Any) -> None:
    """Redirect a stream to the null device, because its buffered output would fail again when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def report_crash(error: BaseException) -> int:
    """Print a short message for an internal error and write its traceback to a file. Return the exit code."""
    trace = "".join(traceback.format_exception(error))
    summary = traceback.format_exception_only(error)[-1].strip()
    where = _stored(trace)
    with contextlib.suppress(OSError):
        typer.echo(
            f"error: autoplan itself failed ({summary}). This is a bug in autoplan, not a fault of your input. "
            f"Please report it with {where}.",
            err=True,
        )
    return CRASHED


def _stored(trace: str) -> str:
    """Write a traceback to a file and return the file's name; the traceback itself if no file can be written."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    report = f"command: {sys.argv}\npython: {sys.version}\n\n{trace}"
    folders: list[Callable[[], str]] = [lambda: ".autoplan", tempfile.gettempdir]
    for find_folder in folders:
        try:
            folder = Path(find_folder())  # on a full disk there may be no temporary folder
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(report, encoding="utf-8")
        except OSError:
            continue
        return f"the file {folder / name}"
    return f"this traceback:\n{trace}"
