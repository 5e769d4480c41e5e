"""Writes the command, or the Python lines, with which a user trains under a plan after tuning."""

from __future__ import annotations

import shlex
from pathlib import Path

from autoplan.plan.records import DEFAULT_FUNCTION, Plan, SourceRecord

SYNTHETIC = "synthetic"
"""The kind of data that an Observation states for a source without data."""


def train_lines(plan: Plan, path: Path | str) -> list[str]:
    """Return the lines to paste: a shell command, or Python.

    `autoplan train` runs scripts, and builders that bring data. A function, a live model or a
    builder without data needs the user's own x and y.
    """
    source = plan.source
    if source.kind == "script" or (source.kind == "builder" and source.fit.data != SYNTHETIC):
        return [_command(source, path)]
    load = f"plan = autoplan.load_plan({str(path)!r})"
    fit = "autoplan.fit(plan, model, x, y)"
    if source.kind == "instance":
        return ["import autoplan", load, "model = autoplan.rebuild(plan, model)", fit]
    imports, call = _builder(source)
    if source.kind == "builder":  # a process of its own, where nothing has imported Keras yet
        backend = plan.config.backend
        imports = ["import os", f"os.environ['KERAS_BACKEND'] = {backend!r}", "import autoplan", *imports]
    else:
        imports = ["import autoplan"]
    return [*imports, load, "with autoplan.scope(plan):", f"    model = {call}", fit]


def in_python(plan: Plan, path: Path | str) -> bool:
    """Return whether `train_lines` are Python, for a process that has the data."""
    return train_lines(plan, path)[0].startswith("import ")


def _command(source: SourceRecord, path: Path | str) -> str:
    words = ["autoplan", "train", *_source_words(source.path), "--plan", str(path)]
    if source.args:
        words += ["--", *source.args]
    return shlex.join(words)


def _source_words(source: str) -> list[str]:
    """A source as it is typed: `-m module`, or a path, without the working directory where it lies below that."""
    if source.startswith("-m "):
        return source.split()
    return [_typed(source)]


def _typed(source: str) -> str:
    path = Path(source)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else source


def _builder(source: SourceRecord) -> tuple[list[str], str]:
    """Return the imports and the call that build the model. A function given as an object needs no import."""
    if source.kind == "callable":
        name = source.path.rpartition(".")[2]
        return [], f"{name if name.isidentifier() else DEFAULT_FUNCTION}()"
    target, _, function = source.path.rpartition(":")
    if not target or not function.isidentifier():
        target, function = source.path, DEFAULT_FUNCTION
    file = _typed(target)
    if target.endswith(".py") and not file.removesuffix(".py").isidentifier():  # in another folder, or no module's name
        return ["import runpy"], f"runpy.run_path({file!r})[{function!r}]()"
    return [f"from {file.removesuffix('.py')} import {function}"], f"{function}()"
