"""Where a model comes from, as something that a fresh process can rebuild.

Files are read and parsed, never imported or run: that is a worker's business, and the planner's process stays free of
frameworks. Only `from_callable` touches live objects, because it is handed them.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoplan.errors import SourceError
from autoplan.plan import knobs
from autoplan.plan.records import DEFAULT_FUNCTION, Value
from autoplan.sources import pickling

BEGUN = "a process that trains what it holds already has begun with the memory settings that it has"


class SourceSpec(Value):
    """Where a model comes from, as something that a fresh process can rebuild.

    script    `path` is run as `__main__` with `args`; where `module` is set, it is run as `python -m` does
    builder   `path` (or `module`, where set) is imported; `function` is called, and `train_data` too if it is there
    callable  `payload` holds (builder, data), to be opened with `shipping.unpack`; `path` is the builder's name.
              data is None, what `fit` takes, or a function without arguments that returns that
    instance  `payload` holds a live model with its data, to be opened with `runtime.instances.opened`; `path` is its
              name. `held` are knobs that cannot be turned, with the reason; `notes` is what was assumed of it

    `path` is absolute. sha256: of the file; for a callable, of its source text and its data; for a live model, of its
    config, its classes and its data.
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
    held: dict[str, str] = {}
    notes: list[str] = []


def resolve(text: str, args: Sequence[str] = (), fit_index: int = 1, function: str | None = None) -> SourceSpec:
    """What the user named -> what a worker can rebuild.

    text       `train.py` | `model.py` (defines build_model, never fits) | `model.py:function` |
               `package.module:function` | `-m package.module`, also without the -m
    args       the script's own arguments
    fit_index  which `fit` of a script counts, from 1
    function   a builder's name, where `text` does not carry it

    SourceError when it cannot be found or read, is no Python, or has no such function.
    """
    if fit_index < 1:
        raise SourceError(f"--fit {fit_index} names no fit: the first one a script calls is 1")
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
    """A function that builds a compiled model, with its data, for processes that cannot import it.

    builder  called without arguments in each worker; functions of `__main__`, notebooks and local modules go by value
    data     None (synthetic batches), what `fit` takes (arrays, or a tuple or dict of its arguments), or a function
             without arguments that returns that. Large arrays are written once and mapped into memory by every worker.

    SourceError names what cannot be sent; OutputError when arrays cannot be written.
    """
    parcel = pickling.pack(builder, data)
    return SourceSpec(
        kind="callable",
        path=pickling.name_of(builder),
        payload=parcel.payload,
        sha256=parcel.sha256,
        directory=str(Path.cwd()),
        held=dict.fromkeys(knobs.process_fields(), BEGUN),
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
    """may_be_builder: a module that builds and never fits is a builder, as a file is."""
    if not _is_dotted_name(name):
        raise SourceError(f"'{name}' is no module name; expected something like package.module")
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
    """Whether `package.module` is meant: dotted, no file of that name, and there is such a package."""
    if "." not in text or not _is_dotted_name(text) or Path(text).exists():
        return False
    top = text.partition(".")[0]
    return bool(importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd())]) or _find_installed(top))


def _locate_module(name: str, *, run: bool) -> Path:
    """The file of a module, found without importing anything: importing a parent package would run the user's code.

    run: what `python -m` runs, so `__main__.py` for a package; else what `import` runs, so `__init__.py`.
    """
    parts = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(parts[0], [str(Path.cwd())]) or _find_installed(parts[0])
    for depth in range(1, len(parts)):
        places = spec.submodule_search_locations if spec else None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: depth + 1]), places) if places else None
    if spec and run and spec.submodule_search_locations:
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
        if spec is None:
            raise SourceError(f"package {name} has no __main__.py, so it cannot be run; name one of its modules")
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise SourceError(
            f"there is no Python module {name} in this folder or among the installed packages; "
            "run from the folder that holds it, or give the path of its file"
        )
    return Path(spec.origin)


def _find_installed(top: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # already imported without a spec, as `__main__` is
        return None


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise SourceError(f"{path} is a folder; expected a Python file, or -m package.module")
        if path.exists() and not path.is_file():  # a pipe is read once, and every trial runs the source anew
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
        return f": it is a link to {path.readlink()}, which is not there"
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".py")
    near = _near(path.name, names)
    where = "this folder" if folder == Path() else str(folder)
    return f"; did you mean {near}?" if near else f"; {where} has {_some(names) or 'no Python file'}"


def _parse(content: bytes, path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user's invalid escapes are for their own run to tell
            return ast.parse(content, filename=str(path))
    except SyntaxError as error:
        place = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        raise SourceError(f"{path} is not Python {sys.version_info[0]}.{sys.version_info[1]} ({place})") from None
    except ValueError as error:  # null bytes
        raise SourceError(f"{path} is not Python ({error})") from None


# What a file is


def _is_builder(tree: ast.Module) -> bool:
    """It defines `build_model`, and running it would never call a `fit`."""
    return DEFAULT_FUNCTION in _defined_names(tree) and not _reaches_fit(tree)


def _reaches_fit(tree: ast.Module) -> bool:
    """Whether running the file as `__main__` can come to a call of `.fit`, in its own functions and classes too."""
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
    """Names that the module binds at its top level, `if` and `try` included; "*" stands for a star import."""
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
    near = _near(function, functions)
    hint = f"did you mean {near}?" if near else f"it defines {_some(functions) or 'no function'}"
    raise SourceError(f"{where} has no {function}; {hint}")


def _split_function(text: str) -> tuple[str, str | None]:
    """`target:function`, unless the whole text is the name of a file."""
    target, colon, function = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, None
    if not target or not function.isidentifier():
        raise SourceError(f"'{text}' ends in no function name; expected path.py:function or package.module:function")
    return target, function


def _is_dotted_name(text: str) -> bool:
    return not text.endswith(".py") and all(part.isidentifier() for part in text.split("."))


def _near(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _some(names: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
