"""Parses compiled HLO text, as `compile().as_text()` prints it for TPUs, GPUs and CPUs, into instructions.

It knows only the syntax; `instruction_cost.py` prices instructions. Sources: the printer and the
parser of openxla/xla (`hlo/ir/hlo_instruction.cc`, `hlo/parser/hlo_parser.cc`), and texts of jax 0.10.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cost_models.errors import WorkloadError
from cost_models.hlo.shapes import (
    BRACKETS,
    CLOSE,
    COMMENT,
    OPEN,
    Array,
    Shape,
    damaged,
    leaves,
    numbers,
    shape_of,
    split,
)

_TILED = re.compile(r"\{[\d,]*:T\(")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+)")
_START = re.compile(r"\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)", re.DOTALL)
_HEADER = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+)(?: \(.*\) -> .*| )?\{\s*$", re.DOTALL)
_END = re.compile(r"\}(?:$|,? )")
"""The last line of a computation; a line of an attribute of several lines may begin with further brackets."""
_OPCODE = re.compile(r"\s*([\w\-]+)\(")


@dataclass
class Instruction:
    """`name = shape opcode(operands), attributes`. `argument` is the text between the parentheses."""

    name: str
    opcode: str
    shape: Shape
    argument: str
    tail: str
    root: bool = False

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of its operands."""
        if self.opcode in ("parameter", "constant", "iota"):
            return ()
        parts = (part.split()[-1].lstrip("%") for part in split(self.argument) if part.strip())
        return tuple(parts)

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """The attributes after the operands, as text by key."""
        found = (part.partition("=") for part in _joined(split(self.tail)))
        return {key.strip(): value.strip() for key, _, value in found if key.strip()}

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        """The backend_config that the target's passes wrote; {} where it is no JSON object."""
        raw = self.attributes.get("backend_config", "")
        try:
            config = json.loads(raw)
            if isinstance(config, str):
                config = json.loads(config)
        except ValueError:
            return {}
        return config if isinstance(config, dict) else {}

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        return tuple(leaves(self.shape))

    @property
    def array(self) -> Array:
        """The first array of its result. WorkloadError where it has none."""
        if not self.arrays:
            raise WorkloadError(f"the compiled text says that {self.opcode} %{self.name} has no result")
        return self.arrays[0]

    @cached_property
    def op_name(self) -> str:
        """JAX's name stack of its source; "" where the compiler added it."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.tail)
        return found[1] if found else ""

    @property
    def called(self) -> str:
        """Name of the computation that a fusion, a call or an asynchronous wrapper runs; "" without one."""
        name = self.attributes.get("calls") or self.attributes.get("to_apply") or ""
        return name.lstrip("%")


@dataclass
class Computation:
    """Instructions in program order."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The root instruction. WorkloadError where no instruction is marked ROOT."""
        found = next((one for one in self.instructions if one.root), None)
        if found is None:
            raise WorkloadError(damaged(f"computation %{self.name} has no ROOT"))
        return found

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters by number."""
        return tuple(sorted((one for one in self.instructions if one.opcode == "parameter"), key=_parameter_number))

    @cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """The users of each instruction's result."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """Return operand `index` of an instruction. WorkloadError where it is missing."""
        try:
            return self.by_name[instruction.operands[index]]
        except (IndexError, KeyError):
            missing = instruction.operands[index] if index < len(instruction.operands) else f"operand {index}"
            message = f"{instruction.opcode} %{instruction.name} reads {missing}, which %{self.name} does not have"
            raise WorkloadError(damaged(message)) from None

    def inputs(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """Return all operands of an instruction."""
        return tuple(self.operand(instruction, index) for index in range(len(instruction.operands)))


@dataclass
class Module:
    """A compiled program.

    devices      number of devices that run it together
    chip_memory  whether its numbered memory spaces are on-chip memory (TPU: texts with tiled layouts)
    aliases      (index of an output, number of the donated parameter whose buffer it reuses)
    """

    name: str
    entry: Computation
    computations: Mapping[str, Computation]
    devices: int
    chip_memory: bool
    aliases: tuple[tuple[int, int], ...]

    def called(self, name: str) -> Computation:
        """Return a computation by name. WorkloadError for an unknown name."""
        try:
            return self.computations[name.lstrip("%")]
        except KeyError:
            raise WorkloadError(damaged(f"it calls %{name.lstrip('%')}, which is not there")) from None


def parse(text: str) -> Module:
    """Parse the text of `compile().as_text()`.

    WorkloadError for anything else: an empty text, MLIR, HLO that was not compiled (not `is_scheduled`), a truncated
    text.
    """
    text = text.strip()
    if not text:
        raise WorkloadError(
            "the compiled text is empty; expected what jax.jit(...).lower(...).compile().as_text() gives"
        )
    header, _, body = text.partition("\n")
    if not header.startswith("HloModule "):
        start = header[:60]
        raise WorkloadError(
            f"this is no compiled HLO: it starts with {start!r}, not with 'HloModule'; "
            "give what jax.jit(...).lower(...).compile().as_text() prints"
        )
    attributes = dict(part.strip().partition("=")[::2] for part in split(header))
    if attributes.get("is_scheduled") != "true":
        raise WorkloadError(
            "this HLO has no schedule (is_scheduled=true), so it was not compiled; "
            "give compile().as_text(), not the lowered text"
        )
    entry, computations = _computations(body)
    devices = _count(attributes, "num_partitions") * _count(attributes, "replica_count")
    return Module(
        name=header.split()[1].rstrip(","),
        entry=entry,
        computations=computations,
        devices=devices,
        chip_memory=_TILED.search(body) is not None,
        aliases=_aliases(attributes.get("input_output_alias", "")),
    )


def _joined(parts: list[str]) -> list[str]:
    """Join replica groups along a mesh with their device ids, which a comma separates."""
    for place, part in enumerate(parts[1:], start=1):
        if part.startswith(" device_ids="):
            return [*parts[: place - 1], f"{parts[place - 1]},{part}", *parts[place + 1 :]]
    return parts


def _computations(body: str) -> tuple[Computation, Mapping[str, Computation]]:
    found: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    for line in _logical_lines(body):
        if current is None:
            header = _HEADER.match(line)
            if header is None:
                continue
            current = found[header["name"]] = Computation(header["name"])
            if header["entry"]:
                entry = current
        elif line.startswith("}"):
            current = None
        else:
            current.instructions.append(_instruction(line))
    if current is not None:
        raise WorkloadError(damaged(f"computation %{current.name} has no end"))
    if entry is None:
        raise WorkloadError(damaged("it has no ENTRY computation"))
    return entry, found


def _logical_lines(body: str) -> Iterator[str]:
    """Yield logical lines: a line that starts no instruction continues the line before it (text in backend_config)."""
    pending = ""
    inside = False
    for line in body.splitlines():
        if not inside:
            inside = line.endswith("{") and _HEADER.match(line) is not None
            yield line
        elif _END.match(line):
            if pending:
                yield pending
            pending, inside = "", False
            yield line
        elif _START.match(line):
            if pending:
                yield pending
            pending = line
        elif pending:
            pending += "\n" + line
    if pending:
        yield pending


def _instruction(line: str) -> Instruction:
    start = _START.match(line)
    if start is None:
        raise WorkloadError(damaged(f"{line.strip()[:80]!r} is no instruction"))
    rest = start["rest"]
    end = _closing(rest, 0) + 1 if rest.startswith(("(", "b(")) else rest.find(" ")
    opcode = _OPCODE.match(rest, end)
    if end <= 0 or opcode is None:
        raise WorkloadError(damaged(f"instruction %{start['name']} has no operation"))
    close = _closing(rest, opcode.end() - 1)
    return Instruction(
        name=start["name"],
        opcode=opcode[1],
        shape=shape_of(rest[:end]),
        argument=COMMENT.sub("", rest[opcode.end() : close]),
        tail=rest[close + 1 :].lstrip(", "),
        root=bool(start["root"]),
    )


def _closing(text: str, start: int) -> int:
    """Return the position at which the bracket that opens at or after `start` closes."""
    depth = 0
    for match in BRACKETS.finditer(text, start):
        if match[0] in OPEN:
            depth += 1
        elif match[0] in CLOSE:
            depth -= 1
            if depth == 0:
                return match.start()
    raise WorkloadError(damaged(f"a bracket of {text[:60]!r} does not close"))


def _parameter_number(instruction: Instruction) -> int:
    found = numbers(instruction.argument)
    return found[0] if found else 0


def _aliases(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(output or 0), int(parameter)) for output, parameter in _ALIAS.findall(text))


def _count(attributes: Mapping[str, str], key: str) -> int:
    found = numbers(attributes.get(key, "1"))
    return found[0] if found else 1
