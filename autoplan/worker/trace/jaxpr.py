"""Flattens a jaxpr to operations with concrete sizes: inlines calls, keeps loop bodies and the costliest branch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from autoplan.worker.trace.attention import FusedAttentionCall, attention_call, is_used
from autoplan.worker.trace.expansions import expansion_of
from autoplan.worker.trace.lstm import LstmCall, lstm_call
from autoplan.worker.trace.primitives import Cost, rule_for
from autoplan.worker.trace.recording import RawOp, Recording
from cost_models.workload.workload import UNEVEN_PAD, Kind, Phase

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
class _JaxprBody:
    """The body of a loop or a branch, and the tensors that it returns."""

    ops: tuple[RawOp, ...]
    results: tuple[int, ...]
    repeat: int = 1


@dataclass(slots=True)
class _Position:
    """The position of an equation in the program.

    scope          the name scopes around it
    phase, layer   what the scope says: forward, backward or update, and the Keras layer
    region         the rematerialization region around it; `regions` have been opened so far
    backward_seen  whether an equation of the backward pass came before
    """

    scope: str = ""
    phase: Phase = Phase.FORWARD
    layer: str = ""
    region: int = 0
    regions: int = 0
    backward_seen: bool = False


def record(closed: Any) -> Recording:
    """Return the operations of a closed jaxpr, without those whose results nothing needs.

    Inputs, constants and outputs are tensors of the recording.
    """
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
    """Turns equations into operations. It knows the structure (calls, loops, branches); rules know the costs."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.position = _Position()
        self.padded: dict[tuple[int, tuple[tuple[int, int], ...], int], int] = {}
        self._structured: Mapping[str, Callable[[Any, dict[Any, int]], RawOp]] = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
        }

    def walk(self, jaxpr: Any, env: dict[Any, int]) -> list[RawOp]:
        """Return the operations of one jaxpr, whose inputs are in `env` already."""
        ops: list[RawOp] = []
        for eqn in jaxpr.eqns:
            ops.extend(self._equation(eqn, env))
        return ops

    def read(self, env: Mapping[Any, int], atom: Any) -> int:
        """Return the tensor of a variable or a literal; a literal becomes a tensor that no operation writes."""
        if hasattr(atom, "val"):
            return self.recording.add(atom.aval)
        return env[atom]

    def _equation(self, eqn: Any, env: dict[Any, int]) -> list[RawOp]:
        name = eqn.primitive.name
        with self._entering(str(eqn.source_info.name_stack)):
            if name in self._structured:
                return [self._structured[name](eqn, env)]
            if name in _INLINED and (inner := _inner_jaxpr(eqn)) is not None:
                return self._inline(eqn, inner, eqn.invars, env)
            if (found := expansion_of(eqn)) is not None:
                return self._inline(eqn, found.jaxpr, found.operands, env)
            if name == _CONVOLUTION and (padding := _uneven_padding(eqn)):
                return self._padded_convolution(eqn, env, padding)
            if (call := attention_call(eqn)) is not None:
                return [self._attention(eqn, call, env)]
            if (recurrent := lstm_call(eqn)) is not None:
                return [self._lstm(eqn, recurrent, env)]
            return [self._plain(eqn, env)]

    @contextmanager
    def _entering(self, name_stack: str) -> Iterator[None]:
        """Move the position into the scopes of an equation, and back afterwards."""
        here = self.position
        outer = here.scope, here.phase, here.layer
        here.scope = f"{here.scope}/{name_stack}" if here.scope and name_stack else here.scope or name_stack
        here.phase, here.layer = self._phase(), _layer(here.scope)
        try:
            yield
        finally:
            here.scope, here.phase, here.layer = outer

    def _phase(self) -> Phase:
        scope = self.position.scope
        if "rematted_computation" in scope:
            return Phase.FORWARD
        if "transpose(" in scope:
            self.position.backward_seen = True
            return Phase.BACKWARD
        if "jvp(" in scope or not self.position.backward_seen:
            return Phase.FORWARD
        return Phase.UPDATE

    def _reads(self, eqn: Any, env: Mapping[Any, int]) -> tuple[int, ...]:
        return tuple(env[atom] for atom in eqn.invars if not hasattr(atom, "val"))

    def _writes(self, eqn: Any, env: dict[Any, int]) -> tuple[int, ...]:
        return tuple(self._define(var, env) for var in eqn.outvars)

    def _define(self, var: Any, env: dict[Any, int]) -> int:
        env[var] = self.recording.add(var.aval)
        return env[var]

    def _op(
        self, kind: Kind, name: str, reads: Sequence[int], writes: Sequence[int], cost: Cost | None = None
    ) -> RawOp:
        """Return an operation at the present position."""
        here = self.position
        return RawOp(kind, name, tuple(reads), tuple(writes), cost or Cost(), here.phase, here.layer, here.region)

    def _plain(self, eqn: Any, env: dict[Any, int]) -> RawOp:
        name = eqn.primitive.name
        rule = rule_for(name)
        if rule is None:
            self.recording.unknown[name, "no rule: counted by the bytes that it reads and writes"] += 1
        kind, cost = (rule.kind, rule.price(eqn)) if rule else (Kind.UNKNOWN, Cost())
        if name == "convert_element_type" and _same_dtype(eqn):
            kind, cost = Kind.VIEW, Cost()
        if name == "pad" and any(low != high for low, high, _ in eqn.params["padding_config"]):
            name = UNEVEN_PAD
        return self._op(kind, name, self._reads(eqn, env), self._writes(eqn, env), cost)

    def _attention(self, eqn: Any, call: FusedAttentionCall, env: dict[Any, int]) -> RawOp:
        """Return attention in one kernel. It writes the statistics of its softmax, and no scores."""
        reads = [self.read(env, atom) for atom in eqn.invars if is_used(atom)]
        return self._op(Kind.ATTENTION, call.primitive, reads, self._writes(eqn, env), Cost(call.flops, call.gemm))

    def _lstm(self, eqn: Any, call: LstmCall, env: dict[Any, int]) -> RawOp:
        """Return an LSTM in one call. Its workspace is no output of the equation, but a buffer of the program."""
        reads = [self.read(env, atom) for atom in eqn.invars]
        writes = self._writes(eqn, env)
        self.recording.tensors.append(("float32", (call.lstm.workspace_bytes,)))  # as JAX's lowering has it
        workspace = len(self.recording.tensors) - 1
        cost = Cost(call.flops, call.lstm.step_product)
        return self._op(Kind.LSTM, call.primitive, reads, [*writes, workspace], cost)

    def _padded_convolution(self, eqn: Any, env: dict[Any, int], padding: tuple[tuple[int, int], ...]) -> list[RawOp]:
        """Split a convolution with uneven padding into padding and a convolution, as libraries without it do.

        The gradient of the weights pads the same input in the same way, so both read one padded array.
        """
        source, ops = self.read(env, eqn.invars[0]), []
        key = source, padding, self.position.region
        if key not in self.padded:
            shape = tuple(
                size + low + high for size, (low, high) in zip(eqn.invars[0].aval.shape, padding, strict=True)
            )
            self.recording.tensors.append((self.recording.tensors[source][0], shape))
            self.padded[key] = len(self.recording.tensors) - 1
            ops.append(self._op(Kind.MOVE, UNEVEN_PAD, [source], [self.padded[key]]))
        plain = self._plain(eqn, env)
        return [*ops, replace(plain, reads=(self.padded[key], *plain.reads[1:]))]

    def _inline(self, eqn: Any, inner: Any, operands: Sequence[Any], env: dict[Any, int]) -> list[RawOp]:
        """Return the operations of a called jaxpr; behind a barrier if it is rematerialized."""
        closed_over, jaxpr = _open(inner)
        arguments = [self.read(env, atom) for atom in operands]
        rematerialized = (
            eqn.primitive.name in _REMAT and eqn.params.get("prevent_cse") and eqn.params.get("differentiated")
        )
        outer_region, barrier = self.position.region, []
        if rematerialized:
            self.position.regions += 1
            self.position.region = self.position.regions
            behind = [self.recording.add(atom.aval) for atom in operands]
            barrier = [self._op(Kind.BARRIER, "optimization_barrier", arguments, behind)]
            arguments = behind
        local = dict(zip(jaxpr.invars, arguments, strict=True)) | self._constants(jaxpr, closed_over)
        ops = self.walk(jaxpr, local)
        self.position.region = outer_region
        for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[var] = self.read(local, atom)
        return barrier + ops

    def _constants(self, jaxpr: Any, values: Sequence[Any]) -> dict[Any, int]:
        found = {var: self.recording.add(var.aval) for var, _ in zip(jaxpr.constvars, values, strict=False)}
        self.recording.constants.extend(found.values())
        return found

    def _scan(self, eqn: Any, env: dict[Any, int]) -> RawOp:
        """Return a loop that runs the body `length` times, on slices of stacked inputs and outputs."""
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
            body.append(self._op(Kind.MOVE, "dynamic_slice", [source], [local[var]]))
        local |= self._constants(jaxpr, params["jaxpr"].consts)
        body += self._body(jaxpr, local).ops
        for atom, target in zip(jaxpr.outvars[carries:], writes[carries:], strict=True):
            body.append(self._op(Kind.SCATTER, "dynamic_update_slice", [self.read(local, atom)], [target]))
        results = [self.read(local, atom) for atom in jaxpr.outvars[:carries]]
        loop = self._op(Kind.LOOP, "scan", reads, writes)
        return _with_body(loop, _JaxprBody(tuple(body), tuple(results), params["length"]))

    def _while(self, eqn: Any, env: dict[Any, int]) -> RawOp:
        """Return a loop whose trip count depends on data: its body counts once, and the recording reports that."""
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
        return _with_body(self._op(Kind.LOOP, "while", reads, writes), self._body(jaxpr, local))

    def _cond(self, eqn: Any, env: dict[Any, int]) -> RawOp:
        """Return the branch with the most FLOPs; of equal branches the one with the most elements read and written."""
        reads = [self.read(env, atom) for atom in eqn.invars]
        bodies = []
        for branch in eqn.params["branches"]:
            local = dict(zip(branch.jaxpr.invars, reads[1:], strict=True)) | self._constants(
                branch.jaxpr, branch.consts
            )
            bodies.append(self._body(branch.jaxpr, local))
        largest = max(bodies, key=lambda body: (_flops(body.ops), self._elements(body.ops)))
        writes = self._writes(eqn, env)
        return _with_body(self._op(Kind.BRANCH, "cond", reads, writes), _writing_to(writes, largest))

    def _body(self, jaxpr: Any, local: dict[Any, int]) -> _JaxprBody:
        outside = dict(self.padded)
        ops = self.walk(jaxpr, local)
        self.padded = outside
        return _JaxprBody(tuple(ops), tuple(self.read(local, atom) for atom in jaxpr.outvars))

    def _elements(self, ops: Sequence[RawOp]) -> int:
        return sum(math.prod(self.recording.tensors[end][1]) for op in ops for end in (*op.reads, *op.writes))


def _with_body(op: RawOp, body: _JaxprBody) -> RawOp:
    return replace(op, repeat=body.repeat, body=body.ops, results=body.results)


def _writing_to(writes: tuple[int, ...], body: _JaxprBody) -> _JaxprBody:
    """Let the operations of a branch write the outputs of the branch directly, so that no tensor exists twice."""
    made = {write for op in body.ops for write in op.writes}
    names: dict[int, int] = {}
    for result, write in zip(body.results, writes, strict=True):
        if result in made:
            names.setdefault(result, write)
    results = tuple(names.get(result, result) for result in body.results)
    return replace(body, ops=tuple(_renamed(op, names) for op in body.ops), results=results)


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
    """Return (low, high) for each input dimension if a convolution pads one end more than the other; else ()."""
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
    """Return the constants and the jaxpr of a closed or an open jaxpr."""
    if hasattr(inner, "jaxpr"):
        return inner.consts, inner.jaxpr
    return (), inner


def _same_dtype(eqn: Any) -> bool:
    return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)


def _layer(scope: str) -> str:
    """Remove JAX's transformations from a scope: `transpose(jvp(block1))/dense` becomes `block1/dense`."""
    parts = [part for part in _TRANSFORM.sub("", scope).split("/") if part]
    return "/".join(parts)


def _without_dead(ops: list[RawOp], needed: set[int]) -> list[RawOp]:
    """Return the operations whose results are needed, in order; XLA removes the others."""
    needed_ops: list[RawOp] = []
    for op in reversed(ops):
        if not needed.isdisjoint(op.writes) or op.kind is Kind.UNKNOWN:
            needed_ops.append(op)
            needed.update(op.reads)
    needed_ops.reverse()
    return needed_ops
