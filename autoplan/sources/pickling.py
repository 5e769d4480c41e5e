"""Pickles the user's functions and data by value, so that worker processes can load them.

Functions are pickled by value, because a worker cannot import `__main__`, a notebook, or a module beside the user's
script. A model is sent as the function that builds it, because a pickled Keras model loses its custom classes.
"""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from autoplan.errors import OutputError, SourceError
from autoplan.machine.tempdirs import LockedFolder

SPILL_BYTES = 2**20
"""Arrays of at least this size are stored as files that workers map into memory, not in the pickle."""


@dataclass(frozen=True)
class Parcel:
    """A pickled builder with its data.

    payload  base64 of the pickled (builder, data)
    sha256   hash of the builder's source and the content of the data
    """

    payload: str
    sha256: str


def pack(builder: Callable[[], Any], data: Any = None) -> Parcel:
    """Pickle a builder and its data by value.

    SourceError names the object that cannot be pickled; OutputError if arrays cannot be written.
    """
    _check_callable(builder, "builder")
    check_data(data)
    try:
        payload, _ = pickled((builder, data))
        sha256 = _fingerprint(builder, data)
    except OSError as error:
        raise OutputError(
            f"the data could not be written for the workers ({error}); free disk space, or set TMPDIR to another folder"
        ) from None
    except Exception as error:  # noqa: BLE001 -- pickling an object may raise anything
        raise SourceError(_why_not_sent(builder, data, error)) from None
    return Parcel(payload=base64.b64encode(payload).decode("ascii"), sha256=sha256)


def unpack(payload: str) -> tuple[Callable[[], Any], Any]:
    """Return the (builder, data) of a parcel, in the process that runs them."""
    builder, data = cloudpickle.loads(base64.b64decode(payload))
    return builder, data


def check_data(data: Any) -> None:
    """Raise SourceError for a data function that cannot be called without arguments."""
    if callable(data):
        _check_callable(data, "data function")


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", type(inner).__name__)


def _check_callable(function: Any, role: str) -> None:
    if hasattr(function, "fit") and hasattr(function, "compile") and not isinstance(function, type):
        raise SourceError(
            f"the {role} is a live model ({type(function).__name__}) but not a keras.Model, so it cannot be rebuilt in "
            "another process; pass the function that builds and compiles it"
        )
    if not callable(function):
        raise SourceError(f"the {role} is a {type(function).__name__}; expected a function without arguments")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise SourceError(
            f"the {role} {name_of(function)} cannot be called without arguments ({error}); "
            "bind them with functools.partial or a lambda"
        ) from None
    except ValueError:  # a builtin without a signature; an error appears when it is called
        return


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles functions and classes by value, and large arrays as the names of files.

    digests  sha256 of each array, by file
    """

    spill_bytes = SPILL_BYTES

    def __init__(self, buffer: BytesIO) -> None:
        super().__init__(buffer)
        self.digests: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (np.ndarray, np.memmap) or not _is_saved_exactly(obj) or obj.nbytes < self.spill_bytes:
            return super().reducer_override(obj)
        digest, path = _spill(obj)
        self.digests[str(path)] = digest
        # Copy on write: changes by one worker are not visible to the others.
        return np.load, (str(path), "c")


def _is_saved_exactly(array: np.ndarray[Any, Any]) -> bool:
    """Return whether a .npy file preserves the array's dtype; bfloat16 would be loaded as bytes."""
    return array.dtype.isbuiltin == 1 and not array.dtype.hasobject


def pickled(value: Any, pickler_class: type[ByValuePickler] = ByValuePickler) -> tuple[bytes, dict[str, str]]:
    """Return the pickle, and the sha256 of each array that was stored in a file, by file."""
    buffer = BytesIO()
    pickler = pickler_class(buffer)
    with _local_modules_by_value():
        pickler.dump(value)
    return buffer.getvalue(), pickler.digests


def _spill(array: np.ndarray[Any, Any]) -> tuple[str, Path]:
    """Store an array in a file named by its content, unless the file exists. Returns its sha256 and the file."""
    content = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{content.dtype.str}{content.shape}".encode())
    digest.update(content.reshape(-1).view(np.uint8).data)
    path = _spill_directory() / f"{digest.hexdigest()}.npy"
    if not path.exists():
        np.save(path, content)
    return digest.hexdigest(), path


@functools.cache
def _spill_directory() -> Path:
    """Return the folder for arrays of this process, which is removed at its end; workers do not outlive it."""
    folder = LockedFolder("autoplan-data-")
    atexit.register(folder.remove)
    return folder.path


@contextmanager
def _local_modules_by_value() -> Iterator[None]:
    """Pickle the user's own modules by value in this context: those beside the main script or in the working folder."""
    modules = [module for module in list(sys.modules.values()) if _is_local(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_local(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    own = module.__name__.partition(".")[0] in {"autoplan", "cost_models", "__main__"}
    if own or not isinstance(file, str):
        return False
    path = Path(file)
    return any(path.is_relative_to(folder) for folder in _local_folders()) and not any(
        path.is_relative_to(folder) for folder in _installed_folders()
    )


def _local_folders() -> list[Path]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return [Path.cwd(), *([Path(main).absolute().parent] if main else [])]


@functools.cache
def _installed_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _fingerprint(builder: Callable[[], Any], data: Any) -> str:
    """Hash the source text, which is equal in every process; pickled code is not (sets, identities of classes)."""
    return hashlib.sha256(source_text(builder) + content_of_data(data)).hexdigest()


def content_of_data(data: Any, pickler_class: type[ByValuePickler] = ByValuePickler) -> bytes:
    """Return the bytes that a hash of data covers: a function's source text, else the pickled values."""
    if data is None or callable(data):
        return b"" if data is None else source_text(data)
    content, digests = pickled(data, pickler_class)
    for path, array_digest in digests.items():
        content = content.replace(path.encode(), array_digest.encode())
    return content


def source_text(function: Callable[..., Any]) -> bytes:
    """Return the file of a function; in a notebook the function's own lines; without source its pickle."""
    inner = function.func if isinstance(function, functools.partial) else function
    extra = repr((function.args, function.keywords)).encode() if isinstance(function, functools.partial) else b""
    try:
        file = Path(inspect.getsourcefile(inner) or "")
        text = file.read_bytes() if file.is_file() else inspect.getsource(inner).encode()
    except (OSError, TypeError):
        return pickled(function)[0]
    return name_of(function).encode() + extra + text


def _why_not_sent(builder: Callable[[], Any], data: Any, error: Exception) -> str:
    """Return a message that names the first object that cannot be pickled."""
    if not callable(data) and not _can_be_sent(data):
        return why_data_not_sent(data, error)
    for role, function in (("builder", builder), ("data function", data)):
        for name, value in _uses(function):
            if not _can_be_sent(value):
                return (
                    f"the {role} {name_of(function)} uses '{name}', a {type(value).__name__} that cannot be sent "
                    f"to worker processes ({error}); create it inside the function"
                )
    return f"{name_of(builder)} cannot be sent to worker processes ({error}); define what it needs inside the function"


def why_data_not_sent(data: Any, error: Exception) -> str:
    """Return the message for data that cannot be pickled."""
    return (
        f"the data ({type(data).__module__}.{type(data).__name__}) cannot be sent to worker processes ({error}); "
        "pass arrays, or a function without arguments that returns the data"
    )


def _uses(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a function uses from outside: its closure, then its module's globals."""
    inner = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        variables = inspect.getclosurevars(inner)
    except TypeError:  # not a Python function
        return
    yield from {**variables.nonlocals, **variables.globals}.items()


def _can_be_sent(value: Any) -> bool:
    try:
        pickled(value)
    except Exception:  # noqa: BLE001 -- pickling an object may raise anything
        return False
    return True
