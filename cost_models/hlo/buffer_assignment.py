"""Reads, from a program that XLA:TPU compiled, how much of the device's memory (HBM) its temporaries take.

`memory_analysis()` does not say so. Its temporaries count the gaps of the heap twice, and its peak adds the memory on
the chip (VMEM) to that of the device. The serialized program holds the compiler's buffer assignment, an `HloProto` of
openxla/xla (`xla/service/hlo.proto`), whose allocations have a memory space and a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_BUFFER_ASSIGNMENT, _ALLOCATIONS = 3, 3
"""Fields of `HloProto` and `BufferAssignmentProto`."""
_SIZE, _THREAD_LOCAL, _PARAMETER, _LIVE_OUT, _COLOR, _CONSTANT = 2, 3, 5, 7, 8, 12
"""Fields of `BufferAllocationProto`."""
_DEVICE_MEMORY = 0
"""The color of HBM. Other colors are memories on the chip."""
_VARINT, _FIXED64, _MESSAGE, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_HLO = 6
"""The field of a part of the serialized program that holds the `HloProto`, as libtpu 0.0.42 writes it."""
_Field = tuple[int, int, int | bytes]


def temporary_heap_bytes(executable: Any) -> int | None:
    """Return the bytes of the device's memory that temporaries of a compiled program take, gaps included.

    executable  what `Compiled.runtime_executable()` returns
    None where the program cannot be serialized, or in a form that is not known.
    """
    try:
        return heap_bytes_of(executable.serialize())
    except (RuntimeError, NotImplementedError, ValueError):  # JaxRuntimeError is a RuntimeError
        return None


def heap_bytes_of(serialized: bytes) -> int | None:
    """Return the bytes of the temporaries in the device's memory; None where no buffer assignment is found.

    ValueError for bytes that are no sequence of messages.
    """
    for part in _delimited(serialized):
        for assignment in _assignments(part):
            sizes = [_temporary_bytes(one) for number, _, one in _fields(assignment) if number == _ALLOCATIONS]
            return sum(sizes)
    return None


def _assignments(part: bytes) -> Iterator[bytes]:
    """Yield the `BufferAssignmentProto` of a part that has one; parts in another form are passed over."""
    try:
        programs = [one for number, _, one in _fields(part) if number == _HLO and isinstance(one, bytes)]
        for program in programs:
            for number, _, one in _fields(program):
                if number == _BUFFER_ASSIGNMENT and isinstance(one, bytes):
                    yield one
    except ValueError:
        return


def _temporary_bytes(allocation: int | bytes) -> int:
    """Return the size of an allocation if temporaries of the device's memory share it, else 0.

    The condition is `BufferAllocation::IsPreallocatedTempBuffer`.
    """
    if not isinstance(allocation, bytes):
        raise ValueError("an allocation is no message")
    found = {number: value for number, kind, value in _fields(allocation) if kind == _VARINT}
    other = any(found.get(number) for number in (_THREAD_LOCAL, _PARAMETER, _LIVE_OUT, _CONSTANT))
    size = found.get(_SIZE, 0)
    return 0 if other or found.get(_COLOR, 0) != _DEVICE_MEMORY or isinstance(size, bytes) else size


def _delimited(data: bytes) -> Iterator[bytes]:
    """Yield messages that are written one after another, each after its length."""
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        yield _cut(data, at, length)
        at += length


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield (number, wire type, value) of the fields of a message in the wire format of protocol buffers."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind in _FIXED or kind == _MESSAGE:
            length, at = _varint(message, at) if kind == _MESSAGE else (_FIXED[kind], at)
            value = _cut(message, at, length)
            at += length
        else:
            raise ValueError(f"wire type {kind} is not known")
        yield number, kind, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of the wire format, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number does not end")


def _cut(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueError("a message is longer than what holds it")
    return data[at : at + length]
