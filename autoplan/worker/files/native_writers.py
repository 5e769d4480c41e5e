"""Patches functions of libraries that write files in C or C++, of which Python reports no audit event."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from autoplan.worker.files.events import Action, ActionKind, path_of

Consider = Callable[[Action], None]


def patch(consider: Consider) -> None:
    """Patch the functions of the modules that are imported by now, so that each first calls `consider`."""
    for name, kind, attributes in _FUNCTIONS:
        module = sys.modules.get(name)
        owner = getattr(module, "MultiDeviceSaver", module)
        for attribute in attributes:
            _patch(owner, attribute, consider, kind)
    _patch_h5py(consider)


_FUNCTIONS: tuple[tuple[str, ActionKind, tuple[str, ...]], ...] = (
    ("torch._C", ActionKind.REPLACES, ("PyTorchFileWriter",)),
    (
        "tensorflow.python.lib.io._pywrap_file_io",
        ActionKind.REPLACES,
        ("WritableFile", "DeleteFile", "DeleteRecursively"),
    ),
    ("tensorflow.python.lib.io._pywrap_file_io", ActionKind.CREATES, ("CreateDir", "RecursivelyCreateDir")),
    ("tensorflow.python.ops.gen_io_ops", ActionKind.REPLACES, ("write_file",)),
    ("tensorflow.python.checkpoint.functional_saver", ActionKind.REPLACES, ("save",)),
    ("tensorflow.python.ops.gen_summary_ops", ActionKind.UPDATES, ("create_summary_file_writer",)),
)
"""Modules, what their functions do to the file that their first arguments name, and the names of the functions."""
_AFTER_AN_OWNER = ("create_summary_file_writer", "save")
"""Functions whose first argument is an object, which the path follows."""
_PATH_NAMES = ("file_prefix", "filename", "prefix", "logdir", "path")


def _patch(module: Any, attribute: str, consider: Consider, kind: ActionKind) -> None:
    original = vars(module).get(attribute) if module is not None else None
    if original is None or getattr(original, "reports_writes", False):
        return
    if isinstance(original, type):
        _replace(original, attribute, _reporting_class(original, consider, kind))
        return
    takes_owner = attribute in _AFTER_AN_OWNER

    @functools.wraps(original)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        _report(args[1:] if takes_owner else args, kwargs, consider, kind)
        return original(*args, **kwargs)

    reporting.reports_writes = True  # type: ignore[attr-defined]
    _replace(original, attribute, reporting)


def _replace(original: Any, name: str, replacement: Any) -> None:
    """Replace a function or class wherever a module of its package has it under this name."""
    for module in list(sys.modules.values()):
        attributes = getattr(module, "__dict__", {})  # not `getattr(module, name)`, which loads lazy modules
        for owner in (module, attributes.get("MultiDeviceSaver")):
            if owner is not None and getattr(owner, "__dict__", {}).get(name) is original:
                setattr(owner, name, replacement)


def _reporting_class(original: type, consider: Consider, kind: ActionKind) -> type:
    """Return a subclass whose instances report the file that they write when they are created."""

    create: Callable[..., None] = vars(original)["__init__"]

    def reporting(self: Any, *args: Any, **kwargs: Any) -> None:
        _report(args, kwargs, consider, kind)
        create(self, *args, **kwargs)

    return type(original.__name__, (original,), {"__init__": reporting, "reports_writes": True})


def _report(args: tuple[Any, ...], kwargs: dict[str, Any], consider: Consider, kind: ActionKind) -> None:
    named = [kwargs[name] for name in _PATH_NAMES if name in kwargs]
    path = _path(next(iter((*args[:1], *named)), None))
    if path is not None:
        consider(Action(kind, path))


def _path(value: Any) -> str | None:
    """Return a path given as text, bytes or a scalar tensor of text; None for anything else, such as a buffer."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, bytes) and value.startswith(b"<"):  # h5py's name of a Python file object
        return None
    text = isinstance(value, (str, bytes)) or hasattr(value, "__fspath__")
    return path_of(value) if text else None


def _patch_h5py(consider: Consider) -> None:
    files: Any = sys.modules.get("h5py._hl.files")
    if files is None or getattr(files.make_fid, "reports_writes", False):
        return
    original = files.make_fid

    @functools.wraps(original)
    def make_fid(name: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
        path = _path(name)
        if path is not None and mode not in ("r", None) and not kwargs.get("in_memory"):
            consider(Action(ActionKind.UPDATES if mode in ("r+", "a") else ActionKind.REPLACES, path))
        return original(name, mode, *args, **kwargs)

    make_fid.reports_writes = True  # type: ignore[attr-defined]
    files.make_fid = make_fid
