"""Counts the bytes of main memory that each kernel of a compiled program reads and writes.

A kernel moves its operands and results once, padding included, with these exceptions:

- slices and gathers read only the selected elements
- an update of a slice or a scatter writes only the changed elements, in place
- arrays in a TPU's on-chip memory cause no traffic

Inside a fusion the same holds for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cost_models.hlo.parser import Computation, Instruction, Module
from cost_models.hlo.shapes import Array

_PICKS = frozenset({"slice", "dynamic-slice", "gather"})
_RENAMES = frozenset({"bitcast", "get-tuple-element", "opt-barrier"})
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
HOST_SPACE = 5
"""Number of the memory space of pinned host memory in XLA:TPU and XLA:GPU."""

_SENDS = ("all-", "reduce-scatter", "collective-", "ragged-all-to-all")
_WORKSPACE = frozenset({"int8", "uint8"})
_RUNS_OTHERS = frozenset({"while", "conditional", "call"})


@dataclass(frozen=True)
class Traffic:
    """Counts the traffic of one program's instructions."""

    module: Module

    def moved_bytes(self, instruction: Instruction, inside: Computation) -> int:
        """Return the bytes that one execution moves. Collectives are priced by their payload, loops by their bodies."""
        if instruction.opcode in _RUNS_OTHERS or sends(instruction):
            return 0
        if instruction.opcode == "fusion":
            return self._fusion(instruction, inside)
        inputs = inside.inputs(instruction)
        if instruction.opcode in _PICKS:
            indices = sum(self._stored(one.arrays) for one in inputs[1:])
            return self._like(instruction.array, inputs[0]) + self._stored(instruction.arrays) + indices
        if instruction.opcode in _IN_PLACE:
            return self._update(instruction, inside)
        return sum(self._stored(one.arrays) for one in _each(inputs)) + self._stored(_results(instruction))

    def _stored(self, arrays: Iterable[Array]) -> int:
        return sum(array.stored_bytes for array in arrays if self._in_main_memory(array))

    def _in_main_memory(self, array: Array) -> bool:
        return not self.module.chip_memory or array.space in (0, HOST_SPACE)

    def _like(self, part: Array, whole: Instruction) -> int:
        """Return the bytes of a part of an array, 0 where the array is in on-chip memory."""
        return part.stored_bytes if any(map(self._in_main_memory, whole.arrays)) else 0

    def _update(self, instruction: Instruction, inside: Computation) -> int:
        """Return the bytes of an update in place: it reads the update and writes as much (a scatter reads it, too)."""
        target, update = inside.operand(instruction, 0), _updates(instruction, inside)
        there = sum(self._like(array, target) for array in update.arrays)
        times = 1 if instruction.opcode == "dynamic-update-slice" else 2
        others = (inside.operand(instruction, index) for index in range(1, len(instruction.operands)))
        return times * there + sum(self._stored(one.arrays) for one in others)

    def _fusion(self, instruction: Instruction, inside: Computation) -> int:
        body = self.module.called(instruction.called)
        moved = 0
        for parameter, source in zip(body.parameters, inside.inputs(instruction), strict=False):
            whole = self._stored(source.arrays)
            moved += min(whole, self._read(body, parameter, source)) if whole else 0
        ends = list(_ends(body, body.root))
        results = instruction.arrays
        if len(ends) != len(results):
            return moved + self._stored(results)
        return moved + sum(self._written(body, end, array) for end, array in zip(ends, results, strict=True))

    def _read(self, body: Computation, parameter: Instruction, source: Instruction) -> int:
        """Return the bytes of one parameter that the body reads; more than its size where it is sliced repeatedly."""
        whole = self._stored(source.arrays)
        total = 0
        for user in _users(body, parameter):
            first = body.operand(user, 0)
            of_parameter = _source(body, first) is parameter
            if user.opcode in _PICKS and of_parameter:
                total += self._like(user.array, source)
            elif user.opcode in _IN_PLACE and of_parameter and _in_place(body, user):
                adds = user.opcode == "scatter"
                total += sum(self._like(array, source) for array in _updates(user, body).arrays) if adds else 0
            elif user.opcode in ("fusion", "call"):
                total += self._read_by_inner(body, user, parameter, source)
            elif not (sends(user) or is_async_marker(user) or user.opcode == "tuple"):
                return whole
        return total

    def _read_by_inner(self, body: Computation, user: Instruction, parameter: Instruction, source: Instruction) -> int:
        inner = self.module.called(user.called)
        passed = zip(inner.parameters, body.inputs(user), strict=False)
        return sum(self._read(inner, taken, source) for taken, given in passed if _source(body, given) is parameter)

    def _written(self, body: Computation, end: Instruction, result: Array) -> int:
        if not self._in_main_memory(result):
            return 0
        if end.opcode == "parameter" or sends(end) or is_async_marker(end):
            return 0
        if end.opcode in _IN_PLACE and _in_place(body, end):
            return min(result.stored_bytes, sum(array.stored_bytes for array in _updates(end, body).arrays))
        return result.stored_bytes


def sends(instruction: Instruction) -> bool:
    """Return whether an instruction is a collective, or half of an asynchronous collective."""
    return instruction.opcode.startswith(_SENDS)


def is_async_marker(instruction: Instruction) -> bool:
    """Return whether an instruction marks the start or end of an asynchronous collective in a fusion (XLA:TPU)."""
    return instruction.opcode == "custom-call" and "AsyncCollective" in instruction.tail


def _each(inputs: Iterable[Instruction]) -> list[Instruction]:
    """Return each instruction once: a kernel with the same operand twice reads it once."""
    return list({one.name: one for one in inputs}.values())


def _results(instruction: Instruction) -> tuple[Array, ...]:
    """Return the arrays that a kernel writes, without the workspace of a library call."""
    if instruction.opcode != "custom-call":
        return instruction.arrays
    first, *others = instruction.arrays or (None,)
    kept = [array for array in others if array is not None and array.dtype not in _WORKSPACE]
    return (*([first] if first is not None else []), *kept)


def _updates(instruction: Instruction, inside: Computation) -> Instruction:
    """Return the update operand: operand 1 of a dynamic-update-slice, the last operand of a scatter."""
    place = 1 if instruction.opcode == "dynamic-update-slice" else len(instruction.operands) - 1
    return inside.operand(instruction, place)


def _source(body: Computation, instruction: Instruction) -> Instruction:
    """Return the instruction whose buffer this instruction returns under another name."""
    while instruction.opcode in _RENAMES and instruction.operands:
        instruction = body.operand(instruction, 0)
    return instruction


def _users(body: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """Yield the users of an instruction, through bitcasts and tuple elements."""
    for user in body.users.get(instruction.name, ()):
        if user.opcode in _RENAMES:
            yield from _users(body, user)
        else:
            yield user


def _ends(body: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """Yield the instruction that computes each result of a fusion."""
    made_by = _source(body, instruction)
    if made_by.opcode == "tuple":
        for part in body.inputs(made_by):
            yield from _ends(body, part)
    else:
        for _ in made_by.arrays if instruction is made_by else instruction.arrays:
            yield made_by


def _in_place(body: Computation, instruction: Instruction) -> bool:
    """Return whether an update writes into a parameter of the fusion and is its result, so that it runs in place."""
    target = _source(body, body.operand(instruction, 0))
    return target.opcode == "parameter" and any(end is instruction for end in _ends(body, body.root))
