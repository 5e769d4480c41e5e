"""Determines the trip counts of the while loops of a compiled program.

On GPUs and CPUs XLA writes a known trip count into the loop's backend_config. On TPUs it follows from the text: the
condition compares a counter with a bound, the counter starts at a constant and the body adds a constant to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from cost_models.hlo.parser import Computation, Instruction, Module
from cost_models.hlo.shapes import numbers

_SAME_VALUE = frozenset({"copy", "bitcast", "convert", "reshape", "broadcast", "copy-done", "copy-start"})
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_MOST_STEPS = 64  # instructions followed backwards from one value


@dataclass(frozen=True)
class _Carried:
    """The loop's carried value at this index."""

    index: int


_Value = int | _Carried | None
_Environment = Mapping[str, "_Value"]


def stated_trip_count(loop: Instruction) -> int | None:
    """Return the trip count that the compiler states for a loop, or None."""
    stated = loop.backend_config.get("known_trip_count")
    count = stated.get("n") if isinstance(stated, Mapping) else None
    return int(count) if count is not None and str(count).isdigit() else None


def trip_count(loop: Instruction, inside: Computation, module: Module) -> int | None:
    """Return the trip count of a loop; None where it does not follow from the text."""
    stated = stated_trip_count(loop)
    return stated if stated is not None else _counted(loop, inside, module)


def _counted(loop: Instruction, inside: Computation, module: Module) -> int | None:
    condition = module.called(loop.attributes.get("condition", ""))
    compared = _comparison(condition, condition.root, {}, module)
    if compared is None:
        return None
    counter, bound, direction = compared
    start = _initial(loop, inside, counter.index)
    limit = _initial(loop, inside, bound.index) if isinstance(bound, _Carried) else bound
    step = _step(module.called(loop.attributes.get("body", "")), counter.index, module)
    if start is None or limit is None or not step:
        return None
    return _times(start, limit, step, direction)


def _times(start: int, limit: int, step: int, direction: str) -> int | None:
    if direction in ("LE", "GE"):
        limit, direction = (limit + 1, "LT") if direction == "LE" else (limit - 1, "GT")
    if (direction == "LT" and step > 0) or (direction == "GT" and step < 0) or direction == "NE":
        return max(0, ceil((limit - start) / step))
    return None


def _comparison(
    body: Computation, instruction: Instruction, known: _Environment, module: Module
) -> tuple[_Carried, int | _Carried, str] | None:
    """Return (counter, bound, direction) where this value is a comparison, else None."""
    if instruction.opcode in ("fusion", "call"):
        inner = module.called(instruction.called)
        return _comparison(inner, inner.root, _passed(body, instruction, known, module), module)
    if instruction.opcode in _SAME_VALUE and instruction.operands:
        return _comparison(body, body.operand(instruction, 0), known, module)
    if instruction.opcode != "compare":
        return None
    left, right = (_value(body, source, known) for source in body.inputs(instruction))
    direction = instruction.attributes.get("direction", "")
    if isinstance(left, _Carried) and right is not None and left != right:
        return left, right, direction
    if isinstance(right, _Carried) and isinstance(left, int):
        return right, left, _FLIPPED.get(direction, direction)
    return None


def _value(body: Computation, instruction: Instruction, known: _Environment) -> _Value:
    """Return the constant or the carried value that an instruction returns, else None."""
    for _ in range(_MOST_STEPS):
        if instruction.name in known:
            return known[instruction.name]
        if instruction.opcode == "constant":
            found = numbers(instruction.argument)
            return found[0] if len(found) == 1 and "." not in instruction.argument else None
        if instruction.opcode == "get-tuple-element":
            source = body.operand(instruction, 0)
            index = numbers(instruction.attributes.get("index", "0"))[0]
            if source.opcode == "parameter":
                return _Carried(index)
            if source.opcode != "tuple":
                return None
            instruction = body.operand(source, index)
        elif instruction.opcode in _SAME_VALUE and instruction.operands:
            instruction = body.operand(instruction, 0)
        else:
            return None
    return None


def _initial(loop: Instruction, inside: Computation, index: int) -> int | None:
    """Return the carried value before the first iteration, where it is a constant."""
    carried = inside.operand(loop, 0)
    if carried.opcode != "tuple" or index >= len(carried.operands):
        return None
    found = _value(inside, inside.operand(carried, index), {})
    return found if isinstance(found, int) else None


def _step(body: Computation, index: int, module: Module) -> int | None:
    """Return the constant that an iteration adds to the carried value, else None."""
    root = body.root
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    return _added(body, body.operand(root, index), {}, index, module)


def _added(body: Computation, instruction: Instruction, known: _Environment, index: int, module: Module) -> int | None:
    while instruction.opcode in _SAME_VALUE and instruction.operands:
        instruction = body.operand(instruction, 0)
    if instruction.opcode == "get-tuple-element" and body.operand(instruction, 0).opcode == "fusion":
        fusion = body.operand(instruction, 0)
        inner = module.called(fusion.called)
        place = numbers(instruction.attributes.get("index", "0"))[0]
        if inner.root.opcode != "tuple" or place >= len(inner.root.operands):
            return None
        return _added(inner, inner.operand(inner.root, place), _passed(body, fusion, known, module), index, module)
    if instruction.opcode in ("fusion", "call"):
        inner = module.called(instruction.called)
        return _added(inner, inner.root, _passed(body, instruction, known, module), index, module)
    if instruction.opcode not in ("add", "subtract"):
        return None
    left, right = (_value(body, source, known) for source in body.inputs(instruction))
    sign = 1 if instruction.opcode == "add" else -1
    if left == _Carried(index) and isinstance(right, int):
        return sign * right
    if right == _Carried(index) and isinstance(left, int) and sign > 0:
        return left
    return None


def _passed(body: Computation, caller: Instruction, known: _Environment, module: Module) -> _Environment:
    inner = module.called(caller.called)
    passed = zip(inner.parameters, body.inputs(caller), strict=False)
    return {taken.name: _value(body, source, known) for taken, source in passed}
