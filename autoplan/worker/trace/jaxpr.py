"""A jaxpr as a list of operations with concrete sizes: calls inlined, loops and branches kept with their bodies."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoplan.worker.trace.expand import written_out
from autoplan.worker.trace.primitives import Cost, rule_for
from cost_models.workload.workload import STRIDED_CONVOLUTION, UNEVEN_PAD, Kind, Phase

_INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
    | {"custom_jvp_call_jaxpr", "custom_vmap_call", "custom_partitioning", "composite"}
    | {"custom_lin", "shard_map", "remat2", "checkpoint", "remat", "run_state"}
)
_CONVOLUTION = "conv_general_dilated"
_REMAT = frozenset({"remat2", "checkpoint", "remat"})
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
_TRANSFORM = re.compile(r"(transpose|jvp|vmap|rematted_computation|checkpoint)\(?|\)")


@dataclass(frozen=True, slots=True)
class RawOp:
    """One operation at one batch size; fields as in `cost_models.workload.workload.Op`."""

    kind: Kind
    primitive: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: Cost
    phase: Phase
    layer: str
    region: int
    repeat: int = 1
    body: tuple[RawOp, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Inner:
    """The body of a loop or a branch, and what it hands back."""

    ops: tuple[RawOp, ...]
    results: tuple[int, ...]
    repeat: int = 1


@dataclass(slots=True)
class Recording:
    """Everything that was seen: tensors as (dtype, shape), operations in program order, and what no rule knew."""

    tensors: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    ops: list[RawOp] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    dispatches: int = 0
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, aval: Any) -> int:
        """A new tensor of this abstract value."""
        self.tensors.append((_dtype_name(aval), tuple(getattr(aval, "shape", ()))))
        return len(self.tensors) - 1


@dataclass(slots=True)
class _Place:
    """Where an equation stands: the scopes around it, the remat region, and whether the backward pass has begun."""

    scope: str = ""
    region: int = 0
    regions: int = 0
    backward_seen: bool = False


def record(closed: Any) -> Recording:
    """Walk a closed jaxpr. Inputs, constants and outputs are tensors of the recording; dead operations are dropped."""
    recording = Recording()
    env: dict[Any, int] = {}
    jaxpr = closed.jaxpr
    for var in jaxpr.constvars:
        env[var] = recording.add(var.aval)
        recording.constants.append(env[var])
    for var in jaxpr.invars:
        env[var] = recording.add(var.aval)
        recording.inputs.append(env[var])
    recording.dispatches = len(jaxpr.eqns)
    walker = _Walker(recording)
    recording.ops = walker.walk(jaxpr, env)
    recording.outputs = [walker.read(env, var) for var in jaxpr.outvars]
    recording.ops = _without_dead(recording.ops, set(recording.outputs))
    return recording


class _Walker:
    """Turns equations into RawOps; knows structure (calls, loops, branches), not prices."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.place = _Place()
        self.padded: dict[tuple[int, tuple[tuple[int, int], ...], int], int] = {}
        self._structured: Mapping[str, Callable[[Any, dict[Any, int], Phase, str], list[RawOp]]] = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
        }

    def walk(self, jaxpr: Any, env: dict[Any, int]) -> list[RawOp]:
        """The operations of one jaxpr whose inputs are in `env` already."""
        ops: list[RawOp] = []
        for eqn in jaxpr.eqns:
            ops.extend(self._equation(eqn, env))
        return ops

    def read(self, env: Mapping[Any, int], atom: Any) -> int:
        """The tensor of a variable or a literal; a literal becomes a tensor that nothing writes."""
        if hasattr(atom, "val"):
            return self.recording.add(atom.aval)
        return env[atom]

    def _equation(self, eqn: Any, env: dict[Any, int]) -> list[RawOp]:
        name = eqn.primitive.name
        outer = self.place.scope
        own = str(eqn.source_info.name_stack)
        self.place.scope = f"{outer}/{own}" if outer and own else outer or own
        phase, layer = self._phase(), _layer(self.place.scope)
        try:
            if name in self._structured:
                return self._structured[name](eqn, env, phase, layer)
            if name in _INLINED and (inner := _inner_jaxpr(eqn)) is not None:
                return self._inline(eqn, inner, eqn.invars, env, phase, layer)
            if (found := written_out(eqn)) is not None:
                return self._inline(eqn, found.jaxpr, found.operands, env, phase, layer)
            if name == _CONVOLUTION and (padding := _uneven_padding(eqn)):
                return self._padded_convolution(eqn, env, padding, phase, layer)
            return [self._plain(eqn, env, phase, layer)]
        finally:
            self.place.scope = outer

    def _phase(self) -> Phase:
        scope = self.place.scope
        if "rematted_computation" in scope:
            return Phase.FORWARD
        if "transpose(" in scope:
            self.place.backward_seen = True
            return Phase.BACKWARD
        if "jvp(" in scope or not self.place.backward_seen:
            return Phase.FORWARD
        return Phase.UPDATE

    def _reads(self, eqn: Any, env: Mapping[Any, int]) -> tuple[int, ...]:
        return tuple(env[atom] for atom in eqn.invars if not hasattr(atom, "val"))

    def _writes(self, eqn: Any, env: dict[Any, int]) -> tuple[int, ...]:
        return tuple(self._define(var, env) for var in eqn.outvars)

    def _define(self, var: Any, env: dict[Any, int]) -> int:
        env[var] = self.recording.add(var.aval)
        return env[var]

    def _plain(self, eqn: Any, env: dict[Any, int], phase: Phase, layer: str) -> RawOp:
        name = eqn.primitive.name
        rule = rule_for(name)
        if rule is None:
            self.recording.unknown[name, "no rule: counted by the bytes that it reads and writes"] += 1
        kind, cost = (rule.kind, rule.price(eqn)) if rule else (Kind.UNKNOWN, Cost())
        if name == "convert_element_type" and _same_bytes(eqn):
            kind, cost = Kind.VIEW, Cost()
        if name == "pad" and any(low != high for low, high, _ in eqn.params["padding_config"]):
            name = UNEVEN_PAD
        if name == _CONVOLUTION and any(stride != 1 for stride in eqn.params["window_strides"]):
            name = STRIDED_CONVOLUTION
        return RawOp(kind, name, self._reads(eqn, env), self._writes(eqn, env), cost, phase, layer, self.place.region)

    def _padded_convolution(
        self, eqn: Any, env: dict[Any, int], padding: tuple[tuple[int, int], ...], phase: Phase, layer: str
    ) -> list[RawOp]:
        """A convolution with uneven padding, as padding and a convolution: some libraries can not pad so themselves.

        The gradient of its weights pads the same input in the same way; both read one padded array.
        """
        source, ops = self.read(env, eqn.invars[0]), []
        key = source, padding, self.place.region
        if key not in self.padded:
            shape = tuple(
                size + low + high for size, (low, high) in zip(eqn.invars[0].aval.shape, padding, strict=True)
            )
            self.recording.tensors.append((self.recording.tensors[source][0], shape))
            self.padded[key] = len(self.recording.tensors) - 1
            ops.append(self._step(Kind.MOVE, UNEVEN_PAD, source, self.padded[key], phase, layer))
        plain = self._plain(eqn, env, phase, layer)
        return [*ops, replace(plain, reads=(self.padded[key], *plain.reads[1:]))]

    def _inline(
        self, eqn: Any, inner: Any, operands: Sequence[Any], env: dict[Any, int], phase: Phase, layer: str
    ) -> list[RawOp]:
        closed_over, jaxpr = _open(inner)
        arguments = [self.read(env, atom) for atom in operands]
        fenced = eqn.primitive.name in _REMAT and eqn.params.get("prevent_cse") and eqn.params.get("differentiated")
        outer_region, fence = self.place.region, []
        if fenced:
            self.place.regions += 1
            self.place.region = self.place.regions
            behind = [self.recording.add(atom.aval) for atom in operands]
            fence = [self._fence(tuple(arguments), tuple(behind), phase, layer)]
            arguments = behind
        local = dict(zip(jaxpr.invars, arguments, strict=True)) | self._constants(jaxpr, closed_over)
        ops = self.walk(jaxpr, local)
        self.place.region = outer_region
        for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[var] = self.read(local, atom)
        return fence + ops

    def _fence(self, before: tuple[int, ...], behind: tuple[int, ...], phase: Phase, layer: str) -> RawOp:
        return RawOp(Kind.BARRIER, "optimization_barrier", before, behind, Cost(), phase, layer, self.place.region)

    def _constants(self, jaxpr: Any, values: Sequence[Any]) -> dict[Any, int]:
        found = {var: self.recording.add(var.aval) for var, _ in zip(jaxpr.constvars, values, strict=False)}
        self.recording.constants.extend(found.values())
        return found

    def _scan(self, eqn: Any, env: dict[Any, int], phase: Phase, layer: str) -> list[RawOp]:
        """`length` runs of the body: constants and carries as they are, slices of stacked inputs and outputs."""
        params, outer = eqn.params, self.recording
        constants, carries = params["num_consts"], params["num_carry"]
        jaxpr = params["jaxpr"].jaxpr
        reads = [self.read(env, atom) for atom in eqn.invars]
        writes = self._writes(eqn, env)
        local = dict(zip(jaxpr.invars[:constants], reads[:constants], strict=True))
        body: list[RawOp] = []
        for var in jaxpr.invars[constants : constants + carries]:
            local[var] = outer.add(var.aval)
        stacked = zip(jaxpr.invars[constants + carries :], reads[constants + carries :], strict=True)
        for var, source in stacked:
            local[var] = outer.add(var.aval)
            body.append(self._step(Kind.MOVE, "dynamic_slice", source, local[var], phase, layer))
        local |= self._constants(jaxpr, params["jaxpr"].consts)
        inner = self._inner(jaxpr, local)
        body += inner.ops
        for atom, target in zip(jaxpr.outvars[carries:], writes[carries:], strict=True):
            body.append(self._step(Kind.SCATTER, "dynamic_update_slice", self.read(local, atom), target, phase, layer))
        results = [self.read(local, atom) for atom in jaxpr.outvars[:carries]]
        inner = _Inner(tuple(body), tuple(results), params["length"])
        return [self._structure(Kind.LOOP, "scan", reads, writes, phase, layer, inner)]

    def _step(self, kind: Kind, name: str, source: int, target: int, phase: Phase, layer: str) -> RawOp:
        return RawOp(kind, name, (source,), (target,), Cost(), phase, layer, self.place.region)

    def _while(self, eqn: Any, env: dict[Any, int], phase: Phase, layer: str) -> list[RawOp]:
        """A loop whose trip count depends on data: its body counts once, and that is reported."""
        self.recording.unknown["while", "trip count depends on data: its body is counted once"] += 1
        params = eqn.params
        jaxpr = params["body_jaxpr"].jaxpr
        reads = [self.read(env, atom) for atom in eqn.invars]
        writes = self._writes(eqn, env)
        of_body = reads[params["cond_nconsts"] :]
        constants = params["body_nconsts"]
        local = dict(zip(jaxpr.invars[:constants], of_body[:constants], strict=True))
        local |= {var: self.recording.add(var.aval) for var in jaxpr.invars[constants:]}
        local |= self._constants(jaxpr, params["body_jaxpr"].consts)
        inner = self._inner(jaxpr, local)
        return [self._structure(Kind.LOOP, "while", reads, writes, phase, layer, inner)]

    def _inner(self, jaxpr: Any, local: dict[Any, int]) -> _Inner:
        outside = dict(self.padded)
        body = self.walk(jaxpr, local)
        self.padded = outside
        return _Inner(tuple(body), tuple(self.read(local, atom) for atom in jaxpr.outvars))

    def _cond(self, eqn: Any, env: dict[Any, int], phase: Phase, layer: str) -> list[RawOp]:
        """The branch that does the most arithmetic, then the one that touches the most bytes."""
        reads = [self.read(env, atom) for atom in eqn.invars]
        bodies = []
        for branch in eqn.params["branches"]:
            local = dict(zip(branch.jaxpr.invars, reads[1:], strict=True)) | self._constants(
                branch.jaxpr, branch.consts
            )
            bodies.append(self._inner(branch.jaxpr, local))
        largest = max(bodies, key=lambda inner: (_flops(inner.ops), self._bytes(inner.ops)))
        writes = self._writes(eqn, env)
        return [self._structure(Kind.BRANCH, "cond", reads, writes, phase, layer, _writing_to(writes, largest))]

    def _structure(
        self,
        kind: Kind,
        name: str,
        reads: Sequence[int],
        writes: tuple[int, ...],
        phase: Phase,
        layer: str,
        inner: _Inner,
    ) -> RawOp:
        region, repeat = self.place.region, inner.repeat
        return RawOp(kind, name, tuple(reads), writes, Cost(), phase, layer, region, repeat, inner.ops, inner.results)

    def _bytes(self, ops: Sequence[RawOp]) -> int:
        return sum(math.prod(self.recording.tensors[end][1]) for op in ops for end in (*op.reads, *op.writes))


def _writing_to(writes: tuple[int, ...], inner: _Inner) -> _Inner:
    """A branch whose operations write the branch's outputs themselves, so that nothing exists twice."""
    made = {write for op in inner.ops for write in op.writes}
    names: dict[int, int] = {}
    for result, write in zip(inner.results, writes, strict=True):
        if result in made:
            names.setdefault(result, write)
    results = tuple(names.get(result, result) for result in inner.results)
    return replace(inner, ops=tuple(_renamed(op, names) for op in inner.ops), results=results)


def _renamed(op: RawOp, names: Mapping[int, int]) -> RawOp:
    return replace(
        op,
        reads=tuple(names.get(end, end) for end in op.reads),
        writes=tuple(names.get(end, end) for end in op.writes),
        results=tuple(names.get(end, end) for end in op.results),
        body=tuple(_renamed(inner, names) for inner in op.body),
    )


def _flops(ops: Sequence[RawOp]) -> int:
    return sum(op.cost.flops + op.repeat * _flops(op.body) for op in ops)


def _uneven_padding(eqn: Any) -> tuple[tuple[int, int], ...]:
    """(low, high) of each dimension of the input, where a convolution adds more at one end; else ()."""
    params = eqn.params
    spatial = params["padding"]
    if any(size != 1 for size in params["lhs_dilation"]) or all(low == high for low, high in spatial):
        return ()
    padding = [(0, 0)] * (len(spatial) + 2)
    for dim, ends in zip(params["dimension_numbers"].lhs_spec[2:], spatial, strict=True):
        padding[dim] = ends
    return tuple(padding)


def _inner_jaxpr(eqn: Any) -> Any | None:
    return next((eqn.params[key] for key in _BODIES if key in eqn.params), None)


def _open(inner: Any) -> tuple[Sequence[Any], Any]:
    """(constants, jaxpr) of a closed or an open jaxpr."""
    if hasattr(inner, "jaxpr"):
        return inner.consts, inner.jaxpr
    return (), inner


def _dtype_name(aval: Any) -> str:
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return "token"
    name = str(dtype)
    return "key" if name.startswith("key<") else name


def _same_bytes(eqn: Any) -> bool:
    return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)


def _layer(scope: str) -> str:
    """`transpose(jvp(block1))/dense` -> `block1/dense`: the scopes that Keras named, without JAX's transformations."""
    parts = [part for part in _TRANSFORM.sub("", scope).split("/") if part]
    return "/".join(parts)


def _without_dead(ops: list[RawOp], needed: set[int]) -> list[RawOp]:
    """Operations that something needs, in order; XLA removes the others."""
    kept: list[RawOp] = []
    for op in reversed(ops):
        if not needed.isdisjoint(op.writes) or op.kind is Kind.UNKNOWN:
            kept.append(op)
            needed.update(op.reads)
    kept.reverse()
    return kept
