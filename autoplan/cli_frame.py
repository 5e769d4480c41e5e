"""What every command shares: arguments behind `--`, errors as messages and exit codes, and one format of output.

Nothing heavy is imported here: `autoplan --help` answers at once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

INTERRUPTED = 130
CRASHED = 1
_FORMAT = "autoplan.format"
_SOURCE_ARGUMENTS = "autoplan.source_arguments"


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
        return list(super().parse_args(ctx, _with_module(own)))

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
    """Note the format while options are parsed, so that an error can be told in it."""
    ctx.meta[_FORMAT] = value
    return value


def tell_error(ctx: typer.Context, kind: str, message: str, exit_code: int) -> None:
    """A message on stderr; under `--format json` the same as the one JSON document on stdout."""
    if ctx.meta.get(_FORMAT) is Format.JSON:
        tell_json({"schema": 1, "error": {"kind": kind, "message": message, "exit_code": exit_code}})
    typer.echo(f"error: {message}", err=True)


def tell_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def tell_crash(error: BaseException) -> int:
    """A fault of autoplan itself: a short message, the whole story in a file. Returns the exit code."""
    story = "".join(traceback.format_exception(error))
    told = traceback.format_exception_only(error)[-1].strip()
    typer.echo(
        f"error: autoplan itself failed ({told}). This is a fault of autoplan, not of your input: "
        f"please report it with {_kept(story)}.",
        err=True,
    )
    return CRASHED


def _kept(story: str) -> str:
    """Write `story` where it can be found; the place, or the story itself when it can be written nowhere."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    told = f"command: {sys.argv}\npython: {sys.version}\n\n{story}"
    for folder in (Path(".autoplan"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(told, encoding="utf-8")
        except OSError:
            continue
        return f"the file {folder / name}"
    return f"this:\n{story}"
