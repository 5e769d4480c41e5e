"""Converts the instructions of a parsed HLO program, loops and calls included, to operations on numbered tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cost_models.errors import WorkloadError
from cost_models.hlo.collectives import Lines, in_fusion, is_collective
from cost_models.hlo.dots import target_of_call
from cost_models.hlo.instruction_cost import InstructionCosts, branches_of, is_free, started
from cost_models.hlo.parser import Computation, Instruction, Module
from cost_models.hlo.shapes import Array, Shape, numbers
from cost_models.hlo.traffic import Traffic
from cost_models.hlo.while_loops import stated_trip_count, trip_count
from cost_models.workload.affine import Affine
from cost_models.workload.compiled_op import Compiled, CompiledCollective
from cost_models.workload.workload import Kind, Op, Phase, Tensor

Numbers = int | tuple["Numbers", ...]
"""Tensor numbers, nested like a shape."""

_IDENTITIES = frozenset({"bitcast", "opt-barrier", "add-dependency", "domain"})
_CALLS = ("call", "call-start", "async-start")
_NOTHING = frozenset({"parameter", "constant", "after-all"})
_UNKNOWN_TRIPS = "its trip count does not follow from the text: its body is counted once"
_TRANSFORM = re.compile(r"jit\([^()]*\)/?|(transpose|jvp|vmap|rematted_computation|checkpoint)\(?|[()]")


@dataclass
class _Walk:
    """State of the walk over one computation: tensors by instruction, operations, and asynchronous operations."""

    body: Computation
    known: dict[str, Numbers]
    ops: list[Op] = field(default_factory=list)
    under_way: dict[str, list[int]] = field(default_factory=dict)
    started_by: dict[str, str] = field(default_factory=dict)

    def inputs(self, instruction: Instruction) -> tuple[Numbers, ...]:
        """Return the operands of an instruction. WorkloadError where one is not defined before it."""
        try:
            return tuple(self.known[name] for name in instruction.operands)
        except KeyError as missing:
            raise WorkloadError(
                f"the compiled text cannot be read: {instruction.opcode} %{instruction.name} reads {missing}, which is "
                f"not defined before it in %{self.body.name}; give all of compile().as_text()"
            ) from None

    def open(self, name: str, place: int) -> None:
        self.under_way.setdefault(name, []).append(place)

    def close(self, name: str) -> None:
        """End the asynchronous operations of this name: operations since their start can hide them."""
        for place in self.under_way.pop(name, ()):
            compiled = self.ops[place].compiled
            if compiled is not None:
                covers = len(self.ops) - 1 - place
                self.ops[place] = replace(self.ops[place], compiled=replace(compiled, covers=covers))


class Program:
    """Tensors, operations and unknown instructions of one program.

    unknown  number of instructions without a rule, by (name, reason)
    """

    def __init__(self, module: Module, lines: Lines) -> None:
        self.module, self.lines = module, lines
        self.kernels = InstructionCosts(module, Traffic(module))
        self.tensors: list[Tensor] = []
        self.unknown: Counter[tuple[str, str]] = Counter()
        self._phase, self._backward_seen = Phase.FORWARD, False

    def entry(self) -> tuple[list[Numbers], list[Op], Numbers]:
        """Return (parameters, operations, result) of one execution. WorkloadError for an inconsistent text."""
        taken = [self._numbered(parameter.shape) for parameter in self.module.entry.parameters]
        ops, result = self._run(self.module.entry, taken)
        return taken, ops, result

    def _run(self, body: Computation, arguments: Sequence[Numbers]) -> tuple[list[Op], Numbers]:
        walk = _Walk(body, dict(zip((one.name for one in body.parameters), arguments, strict=False)))
        for instruction in body.instructions:
            if instruction.name not in walk.known:
                walk.known[instruction.name] = self._step(instruction, walk)
        return walk.ops, walk.known[body.root.name]

    def _step(self, instruction: Instruction, walk: _Walk) -> Numbers:
        opcode = instruction.opcode
        if opcode in _NOTHING:
            return self._numbered(instruction.shape)
        if opcode == "tuple":
            return walk.inputs(instruction)
        if opcode == "get-tuple-element":
            return self._element(instruction, walk)
        if opcode in _IDENTITIES and instruction.operands:
            return walk.inputs(instruction)[0]
        if opcode.endswith(("-done", "-update")) and instruction.operands:
            return self._finish(instruction, walk)
        runs_others = {"while": self._loop, "conditional": self._branch} | dict.fromkeys(_CALLS, self._inline)
        if opcode in runs_others:
            return runs_others[opcode](instruction, walk)
        return self._collective(instruction, walk) if is_collective(instruction) else self._kernel(instruction, walk)

    def _numbered(self, shape: Shape) -> Numbers:
        if isinstance(shape, Array):
            self.tensors.append(Tensor(shape.dtype, tuple(map(Affine, shape.dims))))
            return len(self.tensors) - 1
        return tuple(self._numbered(part) for part in shape)

    def _element(self, instruction: Instruction, walk: _Walk) -> Numbers:
        source = walk.inputs(instruction)[0]
        index = numbers(instruction.attributes.get("index", "0"))[0]
        if isinstance(source, tuple) and index < len(source):
            return source[index]
        return self._numbered(instruction.shape)

    def _finish(self, instruction: Instruction, walk: _Walk) -> Numbers:
        """Handle the `-done` or `-update` of an asynchronous instruction."""
        first = instruction.operands[0]
        made = walk.inputs(instruction)[0]
        start = walk.started_by.get(first, first)
        if instruction.opcode.endswith("-update"):
            walk.started_by[instruction.name] = start
            return made
        walk.close(start)
        arrays = len(instruction.arrays)
        parts = [made[1], made] if isinstance(made, tuple) and len(made) > 1 else [made]
        return next((part for part in parts if len(list(flat(part))) == arrays), None) or self._numbered(
            instruction.shape
        )

    def _inline(self, instruction: Instruction, walk: _Walk) -> Numbers:
        read = walk.inputs(instruction)
        ops, result = self._run(self.module.called(instruction.called), read)
        first = len(walk.ops)
        walk.ops.extend(ops)
        if instruction.opcode == "call":
            return result
        for place, op in enumerate(ops):
            if op.compiled is not None and op.compiled.exchange is not None:
                walk.open(instruction.name, first + place)
        return read, result

    def _loop(self, instruction: Instruction, walk: _Walk) -> Numbers:
        carried = walk.inputs(instruction)
        ops, result = self._run(self.module.called(instruction.attributes.get("body", "")), carried)
        if stated_trip_count(instruction) is None:  # with a stated trip count no kernel evaluates the condition
            ops += self._run(self.module.called(instruction.attributes.get("condition", "")), carried)[0]
        runs = trip_count(instruction, walk.body, self.module)
        if runs is None:
            self.unknown["while", _UNKNOWN_TRIPS] += 1
        made = self._numbered(instruction.shape)
        op = self._op(instruction, Kind.LOOP, carried, made)
        walk.ops.append(replace(op, repeat=1 if runs is None else runs, body=tuple(ops), results=tuple(flat(result))))
        return made

    def _branch(self, instruction: Instruction, walk: _Walk) -> Numbers:
        """Take the most expensive branch, as traces do."""
        given = walk.inputs(instruction)
        branches = enumerate(branches_of(instruction, self.module), start=1)
        runs = [self._run(branch, given[place : place + 1]) for place, branch in branches]
        ops, result = max(runs, key=lambda run: _weight(run[0]), default=([], ()))
        made = self._numbered(instruction.shape)
        op = self._op(instruction, Kind.BRANCH, given, made)
        walk.ops.append(replace(op, body=tuple(ops), results=tuple(flat(result))))
        return made

    def _collective(self, instruction: Instruction, walk: _Walk) -> Numbers:
        made = self._numbered(instruction.shape)
        exchange = self.lines.exchange(instruction, walk.body)
        self._send(instruction, exchange, walk, made, instruction.name)
        return made

    def _kernel(self, instruction: Instruction, walk: _Walk) -> Numbers:
        """Add a kernel. Fusions of XLA:TPU may also contain collectives, which are added before it."""
        one, read = started(instruction), walk.inputs(instruction)
        made = self._numbered(one.shape)
        sent = one.opcode == "fusion" and self._fused_collectives(one, walk, made)
        if not is_free(one):
            cost = self.kernels.cost(one, walk.body, alone=one is not instruction)
            self.unknown.update(cost.unknown)
            if cost.compiled.moved_bytes or cost.flops or not sent:
                op = self._op(one, cost.kind, read, made)
                primitive = cost.primitive or op.primitive
                op = replace(op, primitive=primitive, flops=Affine(cost.flops), gemm=cost.gemm, compiled=cost.compiled)
                walk.ops.append(op)
                if one is not instruction:
                    walk.open(instruction.name, len(walk.ops) - 1)
        return made if one is instruction else (read, made)

    def _fused_collectives(self, instruction: Instruction, walk: _Walk, made: Numbers) -> bool:
        """Add the collectives of a fusion, each at the start of its chain; return whether there is any."""
        found = list(in_fusion(self.module.called(instruction.called), self.module))
        for one in found:
            if one.ends and one.chain:
                walk.close(f"chain {one.chain}")
            if one.starts:
                exchange = self.lines.exchange(one.instruction, one.body, fused=True)
                self._send(instruction, exchange, walk, made, f"chain {one.chain}" if one.chain else instruction.name)
        return bool(found)

    def _send(
        self, instruction: Instruction, exchange: CompiledCollective, walk: _Walk, made: Numbers, name: str
    ) -> None:
        """Add a collective, unless every group is one device."""
        if exchange.devices > 1:
            op = self._op(instruction, Kind.COLLECTIVE, walk.inputs(instruction), made)
            walk.ops.append(replace(op, primitive=exchange.kind, compiled=Compiled(0, exchange=exchange, launches=0)))
            walk.open(name, len(walk.ops) - 1)

    def _op(self, instruction: Instruction, kind: Kind, read: Numbers, made: Numbers) -> Op:
        scope = self.kernels.scope(instruction)
        target = target_of_call(instruction) if instruction.opcode == "custom-call" else ""
        return Op(
            kind,
            target or instruction.opcode,
            tuple(dict.fromkeys(flat(read))),
            tuple(flat(made)),
            phase=self._phase_of(scope),
            layer=layer_of(scope),
            region=int("rematted_computation" in scope or ".remat" in instruction.name),
        )

    def _phase_of(self, scope: str) -> Phase:
        """Return the phase, as in traces; instructions that the compiler added belong to the phase before them."""
        if "rematted_computation" in scope:
            return Phase.FORWARD
        if "transpose(" in scope:
            self._backward_seen, self._phase = True, Phase.BACKWARD
        elif "jvp(" in scope:
            self._phase = Phase.FORWARD
        elif scope:
            self._phase = Phase.UPDATE if self._backward_seen else Phase.FORWARD
        return self._phase


def flat(made: Numbers) -> Iterator[int]:
    """Yield the tensor numbers of a nested shape, in order."""
    if isinstance(made, int):
        yield made
    else:
        for part in made:
            yield from flat(part)


def layer_of(scope: str) -> str:
    """Return Keras's scopes: `jit(train_step)/transpose(jvp(block/dense))/dot_general` -> `block/dense`."""
    first = scope.split(":")[0]
    return "/".join(part for part in _TRANSFORM.sub("", first).split("/")[:-1] if part)


def _weight(ops: Sequence[Op]) -> float:
    """Return the weight of a branch: its FLOPs and bytes."""
    own = sum(op.total_flops.fixed + (op.compiled.moved_bytes if op.compiled else 0) for op in ops)
    return own + sum(_weight(op.body) * op.repeat for op in ops if op.body)
