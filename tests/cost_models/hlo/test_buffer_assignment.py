"""Buffer assignments in the wire format of protocol buffers, written by hand."""

import pytest

from cost_models.hlo.buffer_assignment import heap_bytes_of, temporary_heap_bytes

SIZE, THREAD_LOCAL, PARAMETER, LIVE_OUT, COLOR, CONSTANT = 2, 3, 5, 7, 8, 12
HLO, ASSIGNMENT, ALLOCATION = 6, 3, 3
FIXED64, FIXED32 = b"\x09" + bytes(8), b"\x15" + bytes(4)


def varint(value):
    rest = value >> 7
    return bytes([value & 127 | (128 if rest else 0)]) + (varint(rest) if rest else b"")


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, *parts):
    content = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(content)) + content


def delimited(*parts):
    content = b"".join(parts)
    return varint(len(content)) + content


def allocation(size, *fields):
    return message(ALLOCATION, number(1, 7), number(SIZE, size), *(number(field, value) for field, value in fields))


def program(*allocations):
    """A part that is no program, and one with fixed-width fields before its buffer assignment."""
    header = delimited(b"\xff\xff")
    hlo = message(HLO, message(1, b"module"), message(ASSIGNMENT, *allocations))
    return header + delimited(FIXED64, FIXED32, number(4, 1), hlo) + delimited()


def test_temporaries_of_the_devices_memory_are_counted():
    on_chip, other = (COLOR, 1), 2**20
    others = [allocation(other, (field, 1)) for field in (THREAD_LOCAL, PARAMETER, LIVE_OUT, CONSTANT)]
    assert heap_bytes_of(program(allocation(2**33 + 5), *others, allocation(2**27, on_chip), allocation(300))) == (
        2**33 + 305
    )
    assert heap_bytes_of(program(allocation(2**27, on_chip))) == 0


@pytest.mark.parametrize("serialized", [b"", delimited(message(HLO, message(1, b"module"))), delimited(b"\xff" * 12)])
def test_without_a_buffer_assignment_nothing_is_known(serialized):
    assert heap_bytes_of(serialized) is None


@pytest.mark.parametrize("cut", [2, 4, 9])
def test_what_is_cut_off_is_refused_and_then_not_known(cut):
    damaged = program(allocation(2**33))[:-cut]
    with pytest.raises(ValueError, match="longer than what holds it"):
        heap_bytes_of(damaged)
    assert temporary_heap_bytes(Serialized(damaged)) is None


class Serialized:
    def __init__(self, content):
        self.content = content

    def serialize(self):
        return self.content


class NotSerialized:
    def serialize(self):
        raise NotImplementedError("this compiler does not serialize")


def test_the_heap_of_an_executable():
    assert temporary_heap_bytes(Serialized(program(allocation(300)))) == 300
    assert temporary_heap_bytes(NotSerialized()) is None
