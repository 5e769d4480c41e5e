"""Chooses the Keras backend of a training: the requested backend, else the one that the plain script would use.

Imports no framework and runs no code of the user: a script is only parsed.
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
"""Value of `--backend` that also tunes the backend."""
KERAS_DEFAULT = "tensorflow"
"""Keras's default if no backend is configured (keras/src/backend/config.py)."""
_VARIABLE = "KERAS_BACKEND"
_MODULES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}


@dataclass(frozen=True)
class NamedBackend:
    """A backend that is named somewhere.

    by      what names it
    firm    whether it must be used; otherwise another one is used if it is not installed
    chosen  whether somebody chose it; False for Keras's default, which Keras itself writes into keras.json
    """

    name: str
    by: str
    firm: bool
    chosen: bool = True


@dataclass(frozen=True)
class BackendChoice:
    """The backend to run on, with notes about the choice for the user.

    instead_of  the default backend that was replaced by it
    """

    name: str
    notes: tuple[str, ...] = ()
    instead_of: str | None = None


def choose(
    requested: str | None = None, script: str | Path | None = None, *, prefer: str | None = None
) -> BackendChoice:
    """Return the requested backend, else the backend that the plain script would use.

    requested  the backend that the user requested
    script     the script, which is parsed for an assignment of KERAS_BACKEND; None if there is no file
    prefer     backend that is used instead of Keras's default if nobody chose a backend

    If only a default names a backend and it is not installed, an installed one is used, with a note.

    ConfigError if the backend is unknown or not installed.
    """
    named = _named(requested, script)
    if named.name not in RUNNABLE:
        raise ConfigError(f"unknown backend {named.name!r} ({named.by}); expected {_listed()}")
    if prefer is not None and not named.chosen and named.name != prefer and installed(prefer):
        note = f"no backend was chosen ({named.by} names {named.name}), so the plan is for {prefer}"
        advice = f"set {_VARIABLE}={prefer} when you run the script without autoplan, or give --backend {named.name}"
        return BackendChoice(prefer, (f"{note}; {advice}",), named.name if installed(named.name) else None)
    if installed(named.name):
        return BackendChoice(named.name, _overrules(requested, named, script))
    others = [name for name in RUNNABLE if installed(name)]
    if named.firm or not others:
        raise ConfigError(
            f"the {named.name} backend ({named.by}) is not installed; pip install 'autoplan[{named.name}]'"
            + (f", or give --backend {others[0]}" if others else "")
        )
    note = f"{named.by} names {named.name}, which is not installed, so trials and plan are for {others[0]}"
    return BackendChoice(others[0], (f"{note}; set {_VARIABLE}={others[0]} when you run the script without autoplan",))


@contextmanager
def explain_failures(chosen: BackendChoice) -> Iterator[None]:
    """Add the notes about the backend to an error of the source: another backend is the most likely reason for it."""
    try:
        yield
    except NeverFits:
        raise
    except SourceError as error:
        if not chosen.notes:
            raise
        advice = "a source that uses a framework directly only runs on that backend"
        raise type(error)("\n".join([str(error), *chosen.notes, advice])) from error


def check_option(requested: str) -> str:
    """Return the value of `--backend`. ConfigError if it is invalid."""
    if requested not in (*RUNNABLE, AUTO):
        raise ConfigError(f"--backend {requested}: expected {_listed()}, or {AUTO} to tune the backend")
    return requested


def installed(name: str) -> bool:
    """Return whether the framework of a backend is installed, without importing it."""
    module = _MODULES[name]
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _named(requested: str | None, script: str | Path | None) -> NamedBackend:
    """Return the first backend that is named, in the order of precedence of Keras."""
    if requested is not None:
        return NamedBackend(requested, "requested", firm=True)
    written = backend_in_script(script)
    if written is not None and written.firm:
        return written
    live = live_backend()
    if live is not None:
        return NamedBackend(live, "Keras in this process", firm=True)
    if os.environ.get(_VARIABLE):
        return NamedBackend(os.environ[_VARIABLE], f"the environment variable {_VARIABLE}", firm=True)
    if written is not None:
        return written
    configured = configured_backend()
    if configured is not None:
        return NamedBackend(configured, "keras.json", firm=False, chosen=configured != KERAS_DEFAULT)
    return NamedBackend(KERAS_DEFAULT, "Keras's default", firm=False, chosen=False)


def _overrules(requested: str | None, named: NamedBackend, script: str | Path | None) -> tuple[str, ...]:
    """Return a note if the requested backend is not the one that the script names."""
    if requested is None:
        return ()
    plain = _named(None, script)
    if plain.name == named.name:
        return ()
    return (f"trials and plan are for {named.name}, as requested; {plain.by} names {plain.name}",)


def backend_in_script(script: str | Path | None) -> NamedBackend | None:
    """Return the backend that a script last assigns to KERAS_BACKEND; None if it assigns none.

    `os.environ["KERAS_BACKEND"] = "jax"` is firm; with `os.environ.setdefault(...)` the environment has precedence.
    """
    tree = _parsed(script)
    found = list(_written(tree)) if tree is not None else []
    if not found:
        return None
    name, firm = found[-1]
    return NamedBackend(name, f"{Path(str(script)).name}", firm=firm)


def _parsed(script: str | Path | None) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return None if script is None else ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # a callable, or a file whose errors `source.resolve` reports


def _written(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield (backend, firm) for every constant that is assigned to the variable, in the order of the lines."""
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


def live_backend() -> str | None:
    """Return the backend of Keras if this process has imported Keras, as a notebook does."""
    keras = sys.modules.get("keras")
    config = getattr(keras, "config", None)
    return str(config.backend()) if config is not None else None


def configured_backend() -> str | None:
    """Return the backend in keras.json, in the folder that Keras uses; None if it cannot be read."""
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
