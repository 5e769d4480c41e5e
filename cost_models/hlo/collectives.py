"""Finds the collectives of a compiled program, with the payload and the mesh axis of each.

Plain and `-start` forms count, `-done` and `-update` do not. XLA:TPU also runs collectives inside fusions:

- an all-reduce of which each device keeps a slice (`all-reduce-scatter`) is a reduce-scatter
- a gather that overlaps GEMMs appears in every fusion of its chain; only the first fusion counts, which is marked
  AsyncCollectiveStart
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from cost_models.errors import WorkloadError
from cost_models.hlo.parser import Computation, Instruction, Module
from cost_models.hlo.replica_groups import Line, groups_of, line_of, line_of_pairs, pairs_of
from cost_models.hlo.shapes import Array, damaged
from cost_models.hlo.traffic import is_async_marker
from cost_models.workload.compiled_op import CompiledCollective

KINDS: Mapping[str, str] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "all_gather",
}
"""A broadcast over a ring takes as long as an all-gather of the same bytes."""

_SPLIT = frozenset({"all_gather", "all_to_all"})  # each device's operand is one part of the full array
_SLICES = frozenset({"dynamic-slice"})
_PASSES_ON = frozenset({"bitcast", "copy", "reshape", "get-tuple-element", "convert"})
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass(frozen=True)
class Found:
    """A collective in a fusion. `starts` and `ends`: whether it begins and ends its asynchronous chain there."""

    instruction: Instruction
    body: Computation
    chain: str = ""
    starts: bool = True
    ends: bool = True


@dataclass(frozen=True)
class Lines:
    """Finds the mesh axis of each collective of one program. WorkloadError for a mesh of another size."""

    axes: Mapping[str, int]
    devices: int

    def __post_init__(self) -> None:
        mesh = prod(self.axes.values())
        if mesh != self.devices:
            axes = " x ".join(f"{name} {size}" for name, size in self.axes.items()) or "no axes"
            raise WorkloadError(
                f"the program was compiled for {self.devices} devices, but the mesh has {mesh} ({axes}); "
                "give the axes of the mesh that it was compiled for"
            )

    def exchange(self, instruction: Instruction, inside: Computation, *, fused: bool = False) -> CompiledCollective:
        """Return kind, axis and payload of one collective; `devices` is 1 where every group is one device."""
        opcode = base_opcode(instruction)
        kind = KINDS[opcode]
        line = self._line(instruction, opcode)
        if fused and kind == "all_reduce" and keeps_slices(instruction, inside):
            kind = "reduce_scatter"
        sent = _sent(instruction, inside, opcode)
        payload = sum(array.bytes for array in sent) * (line.devices if kind in _SPLIT else 1)
        if opcode == "collective-broadcast":
            payload //= line.devices
        return CompiledCollective(kind, line.axis, line.devices, line.stride, payload, len(sent))

    def _line(self, instruction: Instruction, opcode: str) -> Line:
        if opcode == "collective-permute":
            pairs = pairs_of(instruction.attributes.get("source_target_pairs", ""))
            moving = tuple(pair for pair in pairs if pair[0] != pair[1])
            self._check(instruction, (device for pair in pairs for device in pair))
            return line_of_pairs(moving, self.axes) if moving else Line("1", 1, 1)
        groups = groups_of(instruction.attributes.get("replica_groups", "{}"), self.devices)
        self._check(instruction, (device for group in groups for device in group))
        return line_of(groups, self.axes) if max(map(len, groups)) > 1 else Line("1", 1, 1)

    def _check(self, instruction: Instruction, named: Iterable[int]) -> None:
        last = max(named, default=0)
        if last >= self.devices:
            message = f"{instruction.opcode} %{instruction.name} names device {last} of {self.devices}"
            raise WorkloadError(damaged(message))


def base_opcode(instruction: Instruction) -> str:
    """Return the opcode of the collective that an instruction runs or starts."""
    return instruction.opcode.removesuffix("-start")


def is_collective(instruction: Instruction) -> bool:
    """Return whether this instruction counts as a collective."""
    return base_opcode(instruction) in KINDS


def in_fusion(body: Computation, module: Module) -> Iterator[Found]:
    """Yield the collectives of a fusion's computation, including nested fusions."""
    for instruction in body.instructions:
        if is_collective(instruction):
            chain = _CHAIN.search(instruction.tail)
            marks = [user.tail for user in body.users.get(instruction.name, ()) if is_async_marker(user)]
            if chain is None and not marks:
                yield Found(instruction, body)
            else:
                starts = any("AsyncCollectiveStart" in mark for mark in marks)
                ends = any("AsyncCollectiveDone" in mark for mark in marks)
                yield Found(instruction, body, chain[1] if chain else body.name, starts, ends)
        elif instruction.opcode in ("fusion", "call"):
            yield from in_fusion(module.called(instruction.called), module)


def keeps_slices(instruction: Instruction, inside: Computation) -> bool:
    """Return whether each device keeps only a slice of the result of an all-reduce in a fusion."""
    users = list(_readers(instruction, inside))
    return bool(users) and not instruction.root and all(user.opcode in _SLICES for user in users)


def _readers(instruction: Instruction, inside: Computation) -> Iterator[Instruction]:
    for user in inside.users.get(instruction.name, ()):
        if user.opcode in _PASSES_ON and not user.root:
            yield from _readers(user, inside)
        else:
            yield user


def _sent(instruction: Instruction, inside: Computation, opcode: str) -> list[Array]:
    """Return the arrays that a device sends: only the first operand of a ragged exchange or a permute of slices."""
    inputs = inside.inputs(instruction)
    if opcode == "ragged-all-to-all" or "slice_sizes" in instruction.attributes:
        inputs = inputs[:1]
    return [array for one in inputs for array in one.arrays if array.dtype != "token"]
