"""Parses shapes in HLO text: element types, dimensions, layouts with tiles and memory spaces.

Source: openxla/xla `shape_util.cc` and `layout.cc`, and texts of jax 0.10.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cost_models.errors import WorkloadError
from cost_models.workload.workload import ITEM_BYTES

DTYPES: Mapping[str, str] = {
    "pred": "bool", "s1": "int1", "u1": "uint1", "s2": "int2", "u2": "uint2", "s4": "int4", "u4": "uint4",
    "s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32", "u32": "uint32", "s64": "int64",
    "u64": "uint64", "f4e2m1fn": "float4_e2m1fn", "f8e3m4": "float8_e3m4", "f8e4m3": "float8_e4m3",
    "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
    "f8e5m2": "float8_e5m2", "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0fnu": "float8_e8m0fnu", "f16": "float16",
    "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
    "token": "token", "opaque": "token", "buffer": "token",
}  # fmt: skip
"""Workload dtypes by XLA's names of element types."""

_ARRAY = re.compile(r"(?P<dtype>[a-z]+[a-z0-9]*)\[(?P<dims>[^\]]*)\](?:\{(?P<layout>[^}]*)\})?")
_BUFFER = re.compile(r"b\((.*)\)$")
_TILE = re.compile(r"T((?:\([^)]*\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"E\((\d+)\)")
COMMENT = re.compile(r"/\*.*?\*/")
BRACKETS = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[(){}\[\],]")
OPEN, CLOSE = frozenset("({["), frozenset(")}]")


@dataclass(frozen=True, slots=True)
class Array:
    """One array: dtype of a Workload, dimensions in elements, and its layout.

    minor_to_major  dimensions, the fastest-moving one first
    tiles           sizes of nested tiles over the fastest-moving dimensions (TPU)
    space           memory space: 0 is main memory; others depend on the target (TPU: 1 is VMEM, 5 is the host)
    bits            stored bits of an element where they differ from the dtype's, else 0
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    bits: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return math.ceil(self.elements * self._item_bytes)

    @property
    def stored_bytes(self) -> int:
        """Bytes with the padding of tiles."""
        sizes = [self.dims[dim] for dim in reversed(self.minor_to_major)] or list(self.dims)
        for tile in self.tiles:
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            outer, inner = sizes[: len(sizes) - len(tile)], sizes[len(sizes) - len(tile) :]
            sizes = [*outer, *(math.ceil(size / part) for size, part in zip(inner, tile, strict=True)), *tile]
        return math.ceil(math.prod(sizes) * self._item_bytes)

    @property
    def _item_bytes(self) -> float:
        return self.bits / 8 if self.bits else ITEM_BYTES[self.dtype]


Shape = Array | tuple["Shape", ...]
"""An array, or a tuple of shapes."""


def leaves(shape: Shape) -> Iterator[Array]:
    """Yield the arrays of a shape, in order."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from leaves(part)


def shape_of(text: str) -> Shape:
    """Parse a shape. WorkloadError for an element type without a known size."""
    text = COMMENT.sub("", text).strip()
    if buffer := _BUFFER.match(text):
        text = buffer[1]
    if text.startswith("("):
        return tuple(shape_of(part) for part in split(text[1:-1]) if part.strip())
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise WorkloadError(damaged(f"{text[:80]!r} is no shape"))
    if match["dtype"] not in DTYPES:
        known = ", ".join(DTYPES)
        raise WorkloadError(f"the compiled text has arrays of type {match['dtype']!r}; known types are {known}")
    dims = tuple(int(dim.replace("<=", "").replace("?", "1")) for dim in match["dims"].split(",") if dim.strip())
    return _laid_out(DTYPES[match["dtype"]], dims, match["layout"] or "")


def _laid_out(dtype: str, dims: tuple[int, ...], layout: str) -> Array:
    order, _, rest = layout.partition(":")
    tiles = _TILE.search(rest)
    space, bits = _SPACE.search(rest), _BITS.search(rest)
    return Array(
        dtype=dtype,
        dims=dims,
        minor_to_major=numbers(order),
        tiles=tuple(numbers(tile.replace("*", "1")) for tile in re.findall(r"\(([^)]*)\)", tiles[1])) if tiles else (),
        space=int(space[1]) if space else 0,
        bits=int(bits[1]) if bits else 0,
    )


def split(text: str) -> list[str]:
    """Split a list at its commas, except commas in brackets and in strings."""
    parts, depth, start = [], 0, 0
    for match in BRACKETS.finditer(text):
        mark = match[0]
        if mark in OPEN:
            depth += 1
        elif mark in CLOSE:
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a text such as `{0,2}`."""
    return tuple(map(int, re.findall(r"-?\d+", text)))


def damaged(what: str) -> str:
    """Return the message for a text that cannot be read."""
    return f"the compiled text cannot be read ({what}); it may have been cut off: give all of compile().as_text()"
