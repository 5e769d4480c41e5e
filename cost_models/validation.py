"""Reading what a file or a message says: unknown and missing keys by name, and what was expected of a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from cost_models.errors import AutoplanError, SchemaError

Value = TypeVar("Value")
Reader = Callable[[Any, str], Any]
"""Takes a value and the dotted place it stands at; returns it checked, or raises SchemaError."""

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


SMALLEST, LARGEST = 1e-30, 1e30
"""Arithmetic on numbers beyond these overflows, and nothing is measured in them."""
_LONGEST_QUOTE = 60


@contextmanager
def raised_as(error: type[AutoplanError], before: str = "", after: str = "") -> Iterator[None]:
    """What a reader has to say, as the error of what was read."""
    try:
        yield
    except SchemaError as wrong:
        raise error(f"{before}{wrong}{after}") from None


def quoted(value: object) -> str:
    """A value as an error quotes it: its first characters."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole numbers of more than 4,300 digits
        return "a number too large to print"
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def converted(data: object, kind: type[Value], where: str) -> Value:
    """Return `data` as a value of `kind`, which msgspec checks.

    Raises:
        SchemaError: the path of the first value that is wrong, beginning with `where`, and what was expected.
    """
    try:
        return msgspec.convert(data, kind)
    except RecursionError:
        raise SchemaError(f"{where} is nested too deeply") from None
    except msgspec.ValidationError as wrong:
        expected, _, path = str(wrong).partition(" - at `$")
        raise SchemaError(f"{where}{path.removesuffix('`')}: {expected[0].lower()}{expected[1:]}") from None


def read_mapping(
    data: object, where: str, readers: Mapping[str, Reader] | Reader, *, required: Sequence[str] = ()
) -> dict[str, Any]:
    """The checked values of `data` under its own keys.

    `readers` has one reader a key, or is one reader for whatever keys there are. SchemaError for what is no mapping,
    an unknown key (with the near one and all expected ones), and a missing one.
    """
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where} is {quoted(data)}; expected a mapping")
    if missing := [key for key in required if key not in data]:
        raise SchemaError(f"{where} lacks {', '.join(missing)}; expected {', '.join(required)}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(readers, Mapping) and key not in readers:
            raise SchemaError(_unknown_key(str(key), where, list(readers)))
        reader = readers[key] if isinstance(readers, Mapping) else readers
        values[str(key)] = reader(value, f"{where}.{key}")
    return values


def read_fields(data: object, where: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the checked values of these keys, all of which `data` has to have; other keys are ignored."""
    known = {key: value for key, value in mapping(data, where).items() if key in readers}
    return read_mapping(known, where, readers, required=tuple(readers))


def _unknown_key(key: str, where: str, expected: list[str]) -> str:
    near = get_close_matches(key, expected, 1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{where} has an unknown key '{key}'{hint} Expected: {', '.join(expected)}"


def number(value: object, where: str) -> float:
    """Zero or a number that something may be measured in. `1e12` is one too, which YAML 1.1 reads as text."""
    try:
        read = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        read = float("nan")
    if read != 0 and not SMALLEST < read < LARGEST:
        raise SchemaError(f"{where} is {quoted(value)}; expected a number such as 3.12e14")
    return read


def whole(value: object, where: str) -> int:
    """A whole number, not negative."""
    try:
        read = number(value, where)
    except SchemaError:
        read = 0.5
    if read != int(read):
        raise SchemaError(f"{where} is {quoted(value)}; expected a whole number")
    return int(value) if isinstance(value, int) else int(read)


def memory(value: object, where: str) -> int:
    """Bytes: a whole number, or text with a unit such as `80 GiB` or `24 GB`."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?b)\s*", value.lower()) if isinstance(value, str) else None
    if match and match[1].count(".") < 2:
        return int(float(match[1]) * _UNITS[match[2]]) if match[2] in _UNITS else whole(value, where)
    try:
        return whole(value, where)
    except SchemaError:
        raise SchemaError(f"{where} is {quoted(value)}; expected bytes, as a whole number or as in '80 GiB'") from None


def text(value: object, where: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise SchemaError(f"{where} is {quoted(value)}; expected text")
    return value


def flag(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise SchemaError(f"{where} is {quoted(value)}; expected true or false")
    return value


def mapping(value: object, where: str) -> dict[str, Any]:
    """Any mapping; its keys are checked by who asked for it."""
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is {quoted(value)}; expected a mapping")
    return dict(value)


def optional(reader: Reader) -> Reader:
    """The same reader, with null let through."""
    return lambda value, where: None if value is None else reader(value, where)


def positive(reader: Reader) -> Reader:
    """The same reader of numbers, with zero refused."""

    def read(value: object, where: str) -> Any:
        found = reader(value, where)
        if not found > 0:
            raise SchemaError(f"{where} is {quoted(value)}; expected a number above zero")
        return found

    return read


def several(reader: Reader) -> Reader:
    """A list whose items `reader` reads, as a tuple."""

    def read(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise SchemaError(f"{where} is {quoted(value)}; expected a list")
        return tuple(reader(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read
