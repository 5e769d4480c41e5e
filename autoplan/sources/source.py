"""Resolves the user's script, builder or function to a `SourceSpec`, from which a worker can rebuild the model.

Files are read and parsed, but never imported or run: only workers do that, so that the planner's process imports no
framework. Only `from_callable` handles live objects.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoplan.errors import SourceError
from autoplan.plan import knobs
from autoplan.plan.records import DEFAULT_FUNCTION, Value
from autoplan.sources import pickling
from cost_models.validation import nearest

PROCESS_ALREADY_STARTED = "the process that trains has already started, and this must be set at its start"


class SourceSpec(Value):
    """The source of a model, from which another process can rebuild it.

    kind      script    `path` is run as `__main__` with `args`; if `module` is set, it is run like `python -m`
              builder   `path` or `module` is imported; `function` is called, and `train_data` if it exists
              callable  `payload` contains (builder, data) for `pickling.unpack`; `path` is the builder's name
              instance  `payload` contains a live model with its data for `live_models.package.unpack`; `path` is its
                        name
    path      absolute path of the file
    sha256    hash of the file; of a callable's source text and data; of a live model's config, classes and data
    input_shapes  shapes of inputs without the batch, by name, for a model without data ("" is a model's only input)
    held      knobs that cannot be tuned, with the reason
    notes     assumptions about a live model
    """

    kind: Literal["script", "builder", "callable", "instance"]
    path: str = ""
    module: str | None = None
    function: str = DEFAULT_FUNCTION
    args: list[str] = []
    fit_index: int = 1
    payload: str | None = None
    sha256: str
    directory: str = Field("", description="working directory that the source expects")
    input_shapes: dict[str, list[int]] = {}
    held: dict[str, str] = {}
    notes: list[str] = []


def resolve(text: str, args: Sequence[str] = (), fit_index: int = 1, function: str | None = None) -> SourceSpec:
    """Resolve the source that the user named.

    text       `train.py` | `model.py` (defines build_model and never fits) | `model.py:function` |
               `package.module:function` | `-m package.module`, also without the -m
    args       the script's own arguments
    fit_index  index of the `fit` that is tuned, from 1
    function   a builder's name, if `text` does not contain it

    SourceError if the source cannot be found or read, is not Python, or has no such function.
    """
    if fit_index < 1:
        raise SourceError(f"--fit {fit_index} is invalid: the first fit of a script is 1")
    text = text.strip()
    if not text:
        raise SourceError(
            "the source is empty; expected a script, a file with build_model(), or package.module:function"
        )
    if text.startswith("-m"):
        return _from_module(text[2:].strip(), None, args, fit_index)
    target, named = _split_function(text)
    function = named or function
    if function and not Path(target).exists() and _is_dotted_name(target):
        return _from_module(target, function, args, fit_index)
    if not function and _names_a_module(target):
        return _from_module(target, None, args, fit_index, may_be_builder=True)
    return _from_path(Path(target).expanduser(), function, args, fit_index)


def from_callable(builder: Callable[[], Any], data: Any = None) -> SourceSpec:
    """Return the source of a function that builds a compiled model, with its data.

    builder  called without arguments in each worker; functions of `__main__`, notebooks and local modules are pickled
             by value
    data     None for synthetic batches, data as `fit` accepts them (arrays, or a tuple or dict of its arguments), or a
             function without arguments that returns such data. Large arrays are written to files once, and every
             worker maps them into memory.

    SourceError names the object that cannot be pickled; OutputError if arrays cannot be written.
    """
    parcel = pickling.pack(builder, data)
    return SourceSpec(
        kind="callable",
        path=pickling.name_of(builder),
        payload=parcel.payload,
        sha256=parcel.sha256,
        directory=str(Path.cwd()),
        held=dict.fromkeys(knobs.process_fields(), PROCESS_ALREADY_STARTED),
    )


# Files and modules


def _from_path(path: Path, function: str | None, args: Sequence[str], fit_index: int) -> SourceSpec:
    content = _read(path)
    tree = _parse(content, path)
    if function:
        _check_function(tree, function, str(path))
    is_builder = function is not None or _is_builder(tree)
    return SourceSpec(
        kind="builder" if is_builder else "script",
        path=str(path.absolute()),
        function=function or DEFAULT_FUNCTION,
        args=list(args),
        fit_index=fit_index,
        sha256=hashlib.sha256(content).hexdigest(),
        directory=str(Path.cwd()),
    )


def _from_module(
    name: str, function: str | None, args: Sequence[str], fit_index: int, *, may_be_builder: bool = False
) -> SourceSpec:
    """Resolve a module.

    may_be_builder  treat a module that defines build_model and never fits as a builder
    """
    if not _is_dotted_name(name):
        raise SourceError(f"'{name}' is not a module name; expected a name such as package.module")
    path = _locate_module(name, run=function is None)
    content = _read(path)
    tree = _parse(content, path)
    if may_be_builder and path.stem != "__main__" and _is_builder(tree):
        function = DEFAULT_FUNCTION
    if function:
        _check_function(tree, function, f"module {name}")
    return SourceSpec(
        kind="builder" if function else "script",
        path=str(path),
        module=name,
        function=function or DEFAULT_FUNCTION,
        args=list(args),
        fit_index=fit_index,
        sha256=hashlib.sha256(content).hexdigest(),
        directory=str(Path.cwd()),
    )


def _names_a_module(text: str) -> bool:
    """Return whether a text names a module: it is dotted, no file has this name, and the package exists."""
    if "." not in text or not _is_dotted_name(text) or Path(text).exists():
        return False
    top = text.partition(".")[0]
    return bool(importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd())]) or _find_installed(top))


def _locate_module(name: str, *, run: bool) -> Path:
    """Find the file of a module without importing its parent packages, which would run the user's code.

    run  find the file that `python -m` runs (`__main__.py` of a package), not the file that `import` runs
    """
    parts = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(parts[0], [str(Path.cwd())]) or _find_installed(parts[0])
    for depth in range(1, len(parts)):
        folders = spec.submodule_search_locations if spec else None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: depth + 1]), folders) if folders else None
    if spec and run and spec.submodule_search_locations:
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
        if spec is None:
            raise SourceError(f"the package {name} has no __main__.py, so it cannot be run; give one of its modules")
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise SourceError(
            f"there is no Python module {name} in this folder or among the installed packages; "
            "run autoplan from the folder that contains it, or give the path of its file"
        )
    return Path(spec.origin)


def _find_installed(top: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a module that was imported without a spec, such as `__main__`
        return None


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SourceError(f"{path} is a folder; expected a Python file, or -m package.module")
        if path.exists() and not path.is_file():  # a pipe can only be read once, but every trial runs the source
            raise SourceError(f"{path} is not a regular file; expected a Python file that can be read more than once")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceError(f"there is no file {path}{_near_files(path)}") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    if path.suffix == ".ipynb":
        raise SourceError(
            f"{path} is a notebook; call autoplan.optimize(build_model, data) in it, or export it as a script"
        )
    if not content.strip():
        raise SourceError(f"{path} is empty; expected a script that calls fit, or a file with build_model()")
    return content


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {folder}"
    if path.is_symlink():
        return f": it is a link to {path.readlink()}, which does not exist"
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".py")
    near = nearest(path.name, names)
    where = "this folder" if folder == Path() else str(folder)
    return f"; did you mean {near}?" if near else f"; {where} has {_some(names) or 'no Python file'}"


def _parse(content: bytes, path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes belong to the user's own run
            return ast.parse(content, filename=str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        raise SourceError(f"{path} is not Python {sys.version_info[0]}.{sys.version_info[1]} ({where})") from None
    except ValueError as error:  # null bytes
        raise SourceError(f"{path} is not Python ({error})") from None


# Scripts and builders


def _is_builder(tree: ast.Module) -> bool:
    """Return whether a file defines `build_model`, and running it would never call `fit`."""
    return DEFAULT_FUNCTION in _defined_names(tree) and not _reaches_fit(tree)


def _reaches_fit(tree: ast.Module) -> bool:
    """Return whether running the file as `__main__` may call `.fit`, directly or in its own functions and classes."""
    definitions = {node.name: node for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    waiting: list[ast.AST] = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    reached: set[str] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fit":
                return True
            if isinstance(node, ast.Name) and node.id in definitions and node.id not in reached:
                reached.add(node.id)
                waiting.append(definitions[node.id])
    return False


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _defined_names(tree: ast.Module) -> set[str]:
    """Return the names that the module binds at its top level, also in `if` and `try`; "*" means a star import."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return names


def _check_function(tree: ast.Module, function: str, where: str) -> None:
    names = _defined_names(tree)
    if function in names or "*" in names or "__getattr__" in names:
        return
    functions = sorted(node.name for node in tree.body if isinstance(node, _DEFINITIONS))
    near = nearest(function, functions)
    hint = f"did you mean {near}?" if near else f"it defines {_some(functions) or 'no function'}"
    raise SourceError(f"{where} has no {function}; {hint}")


def _split_function(text: str) -> tuple[str, str | None]:
    """Split `target:function`, unless the whole text is the name of a file."""
    target, colon, function = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, None
    if not target or not function.isidentifier():
        raise SourceError(
            f"'{text}' does not end in a function name; expected path.py:function or package.module:function"
        )
    return target, function


def _is_dotted_name(text: str) -> bool:
    return not text.endswith(".py") and all(part.isidentifier() for part in text.split("."))


def _some(names: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
