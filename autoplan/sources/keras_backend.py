"""Which Keras backend a training runs on: what was asked, else what the plain script would run on.

Imports no framework, and runs none of the user's code: a script is parsed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import ConfigError, NeverFits, SourceError

RUNNABLE = ("jax", "tensorflow", "torch")
"""Backends that trials and trainings run on."""
AUTO = "auto"
"""What `--backend` takes to have the backend itself tuned."""
KERAS_DEFAULT = "tensorflow"
"""What Keras takes where nothing names a backend (keras/src/backend/config.py)."""
_VARIABLE = "KERAS_BACKEND"
_MODULES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}


@dataclass(frozen=True)
class Named:
    """A backend, who names it, and whether that can be overruled where the backend is not installed.

    chosen  somebody chose it: Keras itself writes its default into keras.json
    """

    name: str
    by: str
    firm: bool
    chosen: bool = True


@dataclass(frozen=True)
class Chosen:
    """The backend to run on, and what its user should know of the choice.

    instead_of  the default that was passed over for it
    """

    name: str
    notes: tuple[str, ...] = ()
    instead_of: str | None = None


def choose(asked: str | None = None, script: str | Path | None = None, *, prefer: str | None = None) -> Chosen:
    """The backend to run on: the one asked for, else the one that the plain script would run on.

    script  the file of the training, parsed for an assignment of KERAS_BACKEND; None where there is no file
    prefer  taken in place of Keras's default, where nobody chose a backend

    ConfigError, before anything is started, for a backend that is unknown or not installed. Where nothing but a
    default names one that is not installed, an installed one is taken, and a note says so.
    """
    named = _named(asked, script)
    if named.name not in RUNNABLE:
        raise ConfigError(f"unknown backend {named.name!r} ({named.by}); expected {_listed()}")
    if prefer is not None and not named.chosen and named.name != prefer and installed(prefer):
        told = f"{named.by} names {named.name} and nobody chose a backend, so the plan is for {prefer}"
        advice = f"set {_VARIABLE}={prefer} when you run the script by itself, or give --backend {named.name}"
        return Chosen(prefer, (f"{told}: {advice}",), named.name if installed(named.name) else None)
    if installed(named.name):
        return Chosen(named.name, _overrules(asked, named, script))
    others = [name for name in RUNNABLE if installed(name)]
    if named.firm or not others:
        raise ConfigError(
            f"the {named.name} backend ({named.by}) is not installed here; pip install 'autoplan[{named.name}]'"
            + (f", or give --backend {others[0]}" if others else "")
        )
    told = f"{named.by} names {named.name}, which is not installed here; trials and plan are on {others[0]}"
    return Chosen(others[0], (f"{told}: set {_VARIABLE}={others[0]} when you run the script by itself",))


@contextmanager
def explaining(chosen: Chosen) -> Iterator[None]:
    """Where a source fails on another backend than its own, say so beside its failure: that is the likeliest reason."""
    try:
        yield
    except NeverFits:
        raise
    except SourceError as error:
        if not chosen.notes:
            raise
        advice = "a source that uses its own backend's framework directly runs on that one alone"
        raise type(error)("\n".join([str(error), *chosen.notes, advice])) from error


def checked(asked: str) -> str:
    """The word that `--backend` was given. ConfigError where it is none."""
    if asked not in (*RUNNABLE, AUTO):
        raise ConfigError(f"--backend {asked}: expected {_listed()}, or {AUTO} to have it tuned")
    return asked


def installed(name: str) -> bool:
    """Whether the framework of a backend is there, without importing it."""
    module = _MODULES[name]
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _named(asked: str | None, script: str | Path | None) -> Named:
    """The first that names a backend, in the order in which Keras would hear them."""
    if asked is not None:
        return Named(asked, "asked for", firm=True)
    written = named_in(script)
    if written is not None and written.firm:
        return written
    live = _live()
    if live is not None:
        return Named(live, "Keras in this process", firm=True)
    if os.environ.get(_VARIABLE):
        return Named(os.environ[_VARIABLE], f"{_VARIABLE} of the environment", firm=True)
    if written is not None:
        return written
    configured = _configured()
    if configured is not None:
        return Named(configured, "keras.json", firm=False, chosen=configured != KERAS_DEFAULT)
    return Named(KERAS_DEFAULT, "Keras's default", firm=False, chosen=False)


def _overrules(asked: str | None, named: Named, script: str | Path | None) -> tuple[str, ...]:
    """A note where what was asked is not what the script says of itself."""
    if asked is None:
        return ()
    plain = _named(None, script)
    if plain.name == named.name:
        return ()
    return (f"trials and plan are on {named.name}, as asked; {plain.by} names {plain.name}",)


def named_in(script: str | Path | None) -> Named | None:
    """The backend that a script writes into KERAS_BACKEND, its last word first; None where it writes none.

    `os.environ["KERAS_BACKEND"] = "jax"` is firm; `os.environ.setdefault(...)` yields to the environment.
    """
    tree = _parsed(script)
    found = list(_written(tree)) if tree is not None else []
    if not found:
        return None
    name, firm = found[-1]
    return Named(name, f"{Path(str(script)).name}", firm=firm)


def _parsed(script: str | Path | None) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return None if script is None else ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # a callable, or a file whose faults `source.resolve` tells


def _written(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(backend, firm) of every constant that goes into the variable, in the order of the lines."""
    nodes = sorted((n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.Call)), key=lambda n: n.lineno)
    for node in nodes:
        if isinstance(node, ast.Assign) and any(_is_variable(target) for target in node.targets):
            value, firm = node.value, True
        elif isinstance(node, ast.Call) and _sets(node):
            value, firm = node.args[1], _attribute(node) == "putenv"
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
            yield value.value, firm


def _is_variable(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and _constant(target.slice) == _VARIABLE


def _sets(call: ast.Call) -> bool:
    setter = _attribute(call) in ("setdefault", "putenv")
    return setter and len(call.args) == 2 and _constant(call.args[0]) == _VARIABLE


def _attribute(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _live() -> str | None:
    """The backend of a Keras that this process has imported: a notebook's, not the command's."""
    keras = sys.modules.get("keras")
    config = getattr(keras, "config", None)
    return str(config.backend()) if config is not None else None


def _configured() -> str | None:
    """The backend in keras.json, looked for where Keras looks; None where there is none that can be read."""
    home = os.environ.get("KERAS_HOME")
    folder = Path(home) if home else Path("~/.keras").expanduser()
    try:
        settings = json.loads((folder / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    name = settings.get("backend") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else None


def _listed() -> str:
    return f"{', '.join(RUNNABLE[:-1])} or {RUNNABLE[-1]}"
