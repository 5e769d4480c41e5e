"""Reads which names the functions of the user's own classes use, from their byte code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FRAMEWORKS = frozenset(("keras", "tensorflow", "jax", "torch"))


def own_bases(cls: type) -> list[type]:
    """Return a class and its bases, without those of Keras and its backends, and without `object`."""
    own = (base for base in cls.__mro__ if base is not object)
    return [base for base in own if base.__module__.partition(".")[0] not in _FRAMEWORKS]


def names_in_own_code(cls: type) -> set[str]:
    """Return the names that a class and its bases use in their functions, without classes of Keras."""
    return {name for base in own_bases(cls) for member in vars(base).values() for name in names_in(code_of(member))}


def code_of(member: Any) -> CodeType | None:
    """Return the code of a function, also of a decorated one (`tf.function` has it as `python_function`)."""
    function = getattr(member, "python_function", member)
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def names_in(code: CodeType | None) -> Iterator[str]:
    """Yield the names that a function uses: attributes, methods, globals, and those of its inner functions."""
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
