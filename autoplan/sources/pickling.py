"""Live Python functions and data -> text that another process turns back into the same things.

A pickled Keras model loses its custom classes, so what travels is the function that builds it: by value, since a worker
cannot import `__main__`, a notebook, or a module that lies beside the user's script.
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
from autoplan.machine.tempdirs import HeldFolder

SPILL_BYTES = 2**20
"""Arrays of at least this many bytes travel as files that workers map into memory, not inside the text."""


@dataclass(frozen=True)
class Parcel:
    """payload: base64 of the pickled (builder, data). sha256: over the builder's source and the data's content."""

    payload: str
    sha256: str


def pack(builder: Callable[[], Any], data: Any = None) -> Parcel:
    """Pickle both by value. SourceError names what cannot be sent; OutputError when arrays cannot be written."""
    _check_callable(builder, "builder")
    check_data(data)
    try:
        payload, _ = pickled((builder, data))
        sha256 = _fingerprint(builder, data)
    except OSError as error:
        raise OutputError(
            f"the data could not be written for the workers ({error}); free some space, or set TMPDIR to another folder"
        ) from None
    except Exception as error:  # noqa: BLE001 -- objects raise what they like when they are pickled
        raise SourceError(_why_not_sent(builder, data, error)) from None
    return Parcel(payload=base64.b64encode(payload).decode("ascii"), sha256=sha256)


def unpack(payload: str) -> tuple[Callable[[], Any], Any]:
    """The (builder, data) of a parcel, in the process that is to run them."""
    builder, data = cloudpickle.loads(base64.b64decode(payload))
    return builder, data


def check_data(data: Any) -> None:
    """SourceError for a data function that cannot be called without arguments."""
    if callable(data):
        _check_callable(data, "data function")


def name_of(function: Callable[..., Any]) -> str:
    """What to call a function when talking to its author."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", type(inner).__name__)


def _check_callable(function: Any, role: str) -> None:
    if hasattr(function, "fit") and hasattr(function, "compile") and not isinstance(function, type):
        raise SourceError(
            f"the {role} is a live model ({type(function).__name__}) and no keras.Model, so it cannot be rebuilt in "
            "another process; pass the function that builds and compiles it"
        )
    if not callable(function):
        raise SourceError(f"the {role} is a {type(function).__name__}; expected a function without arguments")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise SourceError(
            f"the {role} {name_of(function)} cannot be called without arguments ({error}); "
            "give them with functools.partial or a lambda"
        ) from None
    except ValueError:  # a builtin without a signature: calling it will tell
        return


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles functions and classes by value, and large arrays as the name of a file.

    digests: file -> sha256 of the array in it
    """

    spill_bytes = SPILL_BYTES

    def __init__(self, buffer: BytesIO) -> None:
        super().__init__(buffer)
        self.digests: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (np.ndarray, np.memmap) or not _comes_back_whole(obj) or obj.nbytes < self.spill_bytes:
            return super().reducer_override(obj)
        digest, path = _spill(obj)
        self.digests[str(path)] = digest
        # Copy on write: a worker may change its array, and no other worker sees it.
        return np.load, (str(path), "c")


def _comes_back_whole(array: np.ndarray[Any, Any]) -> bool:
    """A .npy file knows NumPy's own types only: bfloat16 would come back as bytes."""
    return array.dtype.isbuiltin == 1 and not array.dtype.hasobject


def pickled(value: Any, pickler_class: type[ByValue] = ByValue) -> tuple[bytes, dict[str, str]]:
    """-> (pickle, sha256 of each array that was put aside, by file)"""
    buffer = BytesIO()
    pickler = pickler_class(buffer)
    with _local_modules_by_value():
        pickler.dump(value)
    return buffer.getvalue(), pickler.digests


def _spill(array: np.ndarray[Any, Any]) -> tuple[str, Path]:
    """Write an array once, under the name of its content. -> (sha256, file)"""
    content = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{content.dtype.str}{content.shape}".encode())
    digest.update(content.reshape(-1).view(np.uint8).data)
    path = _spill_directory() / f"{digest.hexdigest()}.npy"
    if not path.exists():
        np.save(path, content)
    return digest.hexdigest(), path


@functools.cache
def _spill_directory() -> Path:
    """One folder for this process's arrays, removed when it ends: workers outlive no planner."""
    folder = HeldFolder("autoplan-data-")
    atexit.register(folder.remove)
    return folder.path


@contextmanager
def _local_modules_by_value() -> Iterator[None]:
    """Send the user's own modules whole: those beside the main script or in the working directory."""
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
    return any(path.is_relative_to(place) for place in _local_places()) and not any(
        path.is_relative_to(place) for place in _installed_places()
    )


def _local_places() -> list[Path]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return [Path.cwd(), *([Path(main).absolute().parent] if main else [])]


@functools.cache
def _installed_places() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _fingerprint(builder: Callable[[], Any], data: Any) -> str:
    """Over source text, which is the same in every process; pickled code is not (sets, identities of classes)."""
    return hashlib.sha256(source_text(builder) + content_of_data(data)).hexdigest()


def content_of_data(data: Any, pickler_class: type[ByValue] = ByValue) -> bytes:
    """What a fingerprint of data is taken over: a function's source text, else the values."""
    if data is None or callable(data):
        return b"" if data is None else source_text(data)
    content, digests = pickled(data, pickler_class)
    for path, array_digest in digests.items():
        content = content.replace(path.encode(), array_digest.encode())
    return content


def source_text(function: Callable[..., Any]) -> bytes:
    """The file that a function was written in, else (notebooks) the function's own lines, else its pickled form."""
    inner = function.func if isinstance(function, functools.partial) else function
    extra = repr((function.args, function.keywords)).encode() if isinstance(function, functools.partial) else b""
    try:
        file = Path(inspect.getsourcefile(inner) or "")
        text = file.read_bytes() if file.is_file() else inspect.getsource(inner).encode()
    except (OSError, TypeError):
        return pickled(function)[0]
    return name_of(function).encode() + extra + text


def _why_not_sent(builder: Callable[[], Any], data: Any, error: Exception) -> str:
    """One message that names the first thing that cannot be pickled, as its author would."""
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
    """The message for data that cannot be pickled."""
    return (
        f"the data ({type(data).__module__}.{type(data).__name__}) cannot be sent to worker processes ({error}); "
        "pass arrays, or a function without arguments that makes the data"
    )


def _uses(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function holds from outside: its closure, then its module's names."""
    inner = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        variables = inspect.getclosurevars(inner)
    except TypeError:  # no Python function
        return
    yield from {**variables.nonlocals, **variables.globals}.items()


def _can_be_sent(value: Any) -> bool:
    try:
        pickled(value)
    except Exception:  # noqa: BLE001 -- objects raise what they like when they are pickled
        return False
    return True
