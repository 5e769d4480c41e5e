"""Restores Python objects that a fit changes: attributes of callbacks and data, and what their functions refer to."""

from __future__ import annotations

import random
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import keras
import numpy as np

_MOST_ARRAY_BYTES = 2**25
_MOST_OBJECTS = 100_000
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_LIBRARIES = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])


class PythonState:
    """Copies of mutable objects, taken at once, that can be put back into the same objects.

    It follows attributes, containers, closures, and global variables that functions name. It opens the given objects
    and instances of classes that are not in an installed package. Models, layers and other objects of Keras are not
    opened, and of arrays only 32 MiB are kept: larger ones are data, which callbacks do not change.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._waiting: deque[Any] = deque()
        self._array_bytes = _MOST_ARRAY_BYTES
        for root in roots:
            self._open(root)
        while self._waiting and len(self._seen) < _MOST_OBJECTS:
            self._visit(self._waiting.popleft())

    def restore(self) -> None:
        """Put the values back."""
        for undo in self._undo:
            undo()

    def _visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, (list, deque, bytearray)):
            self._undo.append(partial(_refill, value, list(value)))
            self._waiting.extend(() if isinstance(value, bytearray) else value)
        elif isinstance(value, dict):
            self._undo.append(partial(_replace, value, dict(value)))
            self._waiting.extend(value.values())
        elif isinstance(value, set):
            self._undo.append(partial(_replace, value, set(value)))
        elif isinstance(value, tuple):
            self._waiting.extend(value)
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and value.nbytes <= self._array_bytes:
                self._array_bytes -= value.nbytes
                self._undo.append(partial(np.copyto, value, value.copy()))
        elif not self._visited_generator(value):
            self._visit_code(value)

    def _visited_generator(self, value: Any) -> bool:
        """Keep the state of a generator of random numbers; return whether the value is one."""
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            self._undo.append(partial(setattr, bits, "state", bits.state))
        elif isinstance(value, np.random.RandomState):
            self._undo.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._undo.append(partial(value.setstate, value.getstate()))
        else:
            return False
        return True

    def _visit_code(self, value: Any) -> None:
        if isinstance(value, MethodType):
            self._waiting.extend((value.__func__, value.__self__))
        elif isinstance(value, partial):
            self._waiting.extend((value.func, value.args, value.keywords))
        elif isinstance(value, FunctionType):
            if _is_of_the_script(value.__code__.co_filename):
                self._visit_function(value)
        elif not isinstance(value, type) and _is_of_the_script(_file_of(type(value))):
            self._open(value)

    def _visit_function(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._undo.append(partial(setattr, cell, "cell_contents", content))
            self._waiting.append(content)
        names = function.__globals__
        for name in _names(function.__code__):
            if name in names:
                value = names[name]
                if isinstance(value, _PLAIN):
                    self._undo.append(partial(names.__setitem__, name, value))
                else:
                    self._waiting.append(value)

    def _open(self, value: Any) -> None:
        """Follow the attributes of an object and the methods of its own classes."""
        if isinstance(value, (keras.Layer, keras.optimizers.Optimizer, keras.Variable)):
            return
        self._seen[id(value)] = value
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            self._visit(attributes)
        for base in type(value).__mro__:
            if _is_of_the_script(_file_of(base)):
                self._open_class(base)

    def _open_class(self, kind: type) -> None:
        for name, value in vars(kind).items():
            if isinstance(value, _PLAIN) and not name.startswith("__"):
                self._undo.append(partial(setattr, kind, name, value))
            elif isinstance(value, (FunctionType, list, dict, set, deque, np.ndarray)):
                self._waiting.append(value)


def _refill(container: Any, values: list[Any]) -> None:
    container.clear()
    container.extend(values)


def _replace(container: Any, values: Any) -> None:
    container.clear()
    container.update(values)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ("" if kind.__module__ == "__main__" else _LIBRARIES[0])


def _is_of_the_script(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and not file.startswith("<frozen")
