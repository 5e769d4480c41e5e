"""Validates plain values from files and messages; an error names the path of the value and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from cost_models.errors import AutoplanError, SchemaError

Value = TypeVar("Value")
Reader = Callable[[Any, str], Any]
"""A function of a value and its dotted path that returns the checked value, or raises SchemaError."""

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


SMALLEST, LARGEST = 1e-30, 1e30
"""Numbers beyond these are refused: arithmetic on them overflows."""
_LONGEST_QUOTE = 60


@contextmanager
def raised_as(error: type[AutoplanError], before: str = "", after: str = "") -> Iterator[None]:
    """Raise a SchemaError again as another error, with text before and after its message."""
    try:
        yield
    except SchemaError as wrong:
        raise error(f"{before}{wrong}{after}") from None


def quoted(value: object) -> str:
    """Return the first characters of a value, for an error message."""
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
    """Return the checked values of `data` under its own keys.

    data      any value
    where     its path, for messages
    readers   one reader a key, or one reader for all keys

    SchemaError for a value that is no mapping, an unknown key (with the most similar one and all expected ones), and a
    missing key.
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


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant; None where none is similar."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.7)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: `; did you mean hosts?`, or "" where none is similar."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def _unknown_key(key: str, where: str, expected: list[str]) -> str:
    hint = did_you_mean(key, expected) or "."
    return f"{where} has an unknown key '{key}'{hint} Expected: {', '.join(expected)}"


def number(value: object, where: str) -> float:
    """Return a number of at least 0. Text such as `1e12` is accepted, because YAML 1.1 reads it as text."""
    try:
        read = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        read = float("nan")
    if read != 0 and not SMALLEST < read < LARGEST:
        raise SchemaError(f"{where} is {quoted(value)}; expected a number such as 3.12e14")
    return read


def whole(value: object, where: str) -> int:
    """Return a whole number of at least 0."""
    try:
        read = number(value, where)
    except SchemaError:
        read = 0.5
    if read != int(read):
        raise SchemaError(f"{where} is {quoted(value)}; expected a whole number")
    return int(value) if isinstance(value, int) else int(read)


def memory(value: object, where: str) -> int:
    """Return bytes from a whole number, or from text with a unit such as `80 GiB` or `24 GB`."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?b)\s*", value.lower()) if isinstance(value, str) else None
    if match and match[1].count(".") < 2:
        return int(float(match[1]) * _UNITS[match[2]]) if match[2] in _UNITS else whole(value, where)
    try:
        return whole(value, where)
    except SchemaError:
        raise SchemaError(f"{where} is {quoted(value)}; expected bytes, as a whole number or as in '80 GiB'") from None


def text(value: object, where: str) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise SchemaError(f"{where} is {quoted(value)}; expected text")
    return value


def flag(value: object, where: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise SchemaError(f"{where} is {quoted(value)}; expected true or false")
    return value


def mapping(value: object, where: str) -> dict[str, Any]:
    """Return a mapping; the caller checks its keys."""
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is {quoted(value)}; expected a mapping")
    return dict(value)


def optional(reader: Reader) -> Reader:
    """Return the same reader, which also accepts null."""
    return lambda value, where: None if value is None else reader(value, where)


def positive(reader: Reader) -> Reader:
    """Return the same reader of numbers, which refuses zero."""

    def read(value: object, where: str) -> Any:
        found = reader(value, where)
        if not found > 0:
            raise SchemaError(f"{where} is {quoted(value)}; expected a number above zero")
        return found

    return read


def several(reader: Reader) -> Reader:
    """Return a reader of lists that applies `reader` to every item and returns a tuple."""

    def read(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise SchemaError(f"{where} is {quoted(value)}; expected a list")
        return tuple(reader(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read
