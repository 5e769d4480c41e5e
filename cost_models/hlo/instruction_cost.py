"""Computes the cost of one HLO instruction of a compiled program: kind, FLOPs, GEMM and memory traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, log2

from cost_models.hlo.attention import AttentionKernel, attention_of
from cost_models.hlo.dots import ELEMENTWISE, Product, arithmetic, product_of, stated_flops, target_of_call
from cost_models.hlo.lstm import LstmKernel, lstm_of
from cost_models.hlo.parser import Computation, Instruction, Module
from cost_models.hlo.traffic import HOST_SPACE, Traffic, is_async_marker, sends
from cost_models.workload.affine import Affine
from cost_models.workload.compiled_op import Compiled
from cost_models.workload.workload import Kind

_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(ELEMENTWISE, Kind.ELEMENTWISE),
    "bitcast-convert": Kind.VIEW,
    "broadcast": Kind.BROADCAST,
    "cholesky": Kind.CUSTOM,
    "concatenate": Kind.MOVE,
    "convolution": Kind.CONV,
    "copy": Kind.COPY,
    "dot": Kind.DOT,
    "dynamic-reshape": Kind.MOVE,
    "dynamic-slice": Kind.MOVE,
    "dynamic-update-slice": Kind.SCATTER,
    "fft": Kind.CUSTOM,
    "gather": Kind.GATHER,
    "get-dimension-size": Kind.BROADCAST,
    "iota": Kind.BROADCAST,
    "pad": Kind.MOVE,
    "partition-id": Kind.BROADCAST,
    "ragged-dot": Kind.DOT,
    "reduce": Kind.REDUCE,
    "reduce-window": Kind.POOL,
    "replica-id": Kind.BROADCAST,
    "reshape": Kind.MOVE,
    "reverse": Kind.MOVE,
    "rng": Kind.RANDOM,
    "rng-bit-generator": Kind.RANDOM,
    "rng-get-and-update-state": Kind.RANDOM,
    "scatter": Kind.SCATTER,
    "select-and-scatter": Kind.POOL_GRADIENT,
    "slice": Kind.MOVE,
    "sort": Kind.SORT,
    "topk": Kind.SORT,
    "transpose": Kind.MOVE,
    "triangular-solve": Kind.CUSTOM,
}
_NAMES_A_FUSION = (Kind.SCATTER, Kind.SORT, Kind.POOL, Kind.POOL_GRADIENT, Kind.REDUCE, Kind.RANDOM, Kind.GATHER)
"""Kinds that name a fusion: the first one that it contains decides."""

_STRUCTURE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"})
_FREE_CALLS = frozenset(
    {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "PrepareAsyncCallStart", "PrepareAsyncCallDone"}
)
"""Custom calls of XLA:TPU that run nothing: they name memory, or order instructions."""

_SORTS = ("topk", "radixsort", "sort")
_NO_HOST_LINK = "the link to the host is not known: counted by its bytes, at the rate of the device's own memory"
_NO_RULE = "no rule: counted by the bytes that it reads and writes"


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Cost of one execution. `unknown` names instructions without a rule, each with a reason.

    primitive  of the operation in a Workload, where it is not the name of the instruction
    """

    kind: Kind
    flops: int
    gemm: tuple[Affine, ...]
    compiled: Compiled
    unknown: tuple[tuple[str, str], ...] = ()
    primitive: str = ""


@dataclass(frozen=True)
class _Content:
    """Work of a fused computation: FLOPs outside GEMMs, its GEMMs, the kinds of its instructions."""

    arithmetic: int
    products: tuple[tuple[Kind, Product], ...]
    kinds: frozenset[Kind]
    unknown: tuple[tuple[str, str], ...] = ()


@dataclass
class InstructionCosts:
    """Prices the instructions of one program; each computation is read once."""

    module: Module
    traffic: Traffic
    _contents: dict[str, _Content] = field(default_factory=dict)

    def cost(self, instruction: Instruction, inside: Computation, *, alone: bool = False) -> KernelCost:
        """Return the cost of one execution. `alone`: whether it runs asynchronously, next to the kernels."""
        if (attention := attention_of(instruction, inside)) is not None:
            return self._attention(attention, instruction, inside)
        if (recurrent := lstm_of(instruction, inside)) is not None:
            return self._lstm(recurrent, instruction, inside)
        content = self._content_of(instruction, inside)
        kind, largest = max(content.products, key=lambda found: found[1].flops, default=(None, None))
        product_flops = sum(product.flops for _, product in content.products)
        compiled = Compiled(
            moved_bytes=self.traffic.moved_bytes(instruction, inside),
            product_flops=product_flops,
            dtype=largest.dtype if largest else "",
            launches=int(not self.module.chip_memory or not (alone or self._is_scalar(instruction, inside))),
        )
        return KernelCost(
            kind=kind or self._kind_of(instruction, content.kinds),
            flops=content.arithmetic + product_flops,
            gemm=tuple(map(Affine, largest.gemm)) if largest else (),
            compiled=compiled,
            unknown=content.unknown + self._over_the_host(instruction, inside),
        )

    def _attention(self, kernel: AttentionKernel, instruction: Instruction, inside: Computation) -> KernelCost:
        moved = self.traffic.moved_bytes(instruction, inside)
        compiled = Compiled(moved, product_flops=kernel.flops, dtype=kernel.scores.dtype)
        gemm = tuple(map(Affine, kernel.scores.gemm))
        return KernelCost(Kind.ATTENTION, kernel.flops, gemm, compiled, primitive=kernel.primitive)

    def _lstm(self, kernel: LstmKernel, instruction: Instruction, inside: Computation) -> KernelCost:
        moved = self.traffic.moved_bytes(instruction, inside) - kernel.oversize_bytes
        compiled = Compiled(moved, product_flops=kernel.flops, dtype="float32", launches=kernel.lstm.kernels)
        gemm = tuple(map(Affine, kernel.lstm.step_product))
        return KernelCost(Kind.LSTM, kernel.flops, gemm, compiled, primitive=kernel.primitive)

    def scope(self, instruction: Instruction) -> str:
        """JAX's name stack of an instruction, or of what a fusion ends in or starts with; "" where none is known."""
        if instruction.op_name or instruction.opcode != "fusion":
            return instruction.op_name
        body = self.module.called(instruction.called)
        return body.root.op_name or next((one.op_name for one in body.instructions if one.op_name), "")

    def _over_the_host(self, instruction: Instruction, inside: Computation) -> tuple[tuple[str, str], ...]:
        ends = (instruction, *inside.inputs(instruction))
        there = any(array.space == HOST_SPACE for end in ends for array in end.arrays)
        return (("memory of the host", _NO_HOST_LINK),) if there else ()

    def _is_scalar(self, instruction: Instruction, inside: Computation) -> bool:
        ends = (instruction, *inside.inputs(instruction))
        return instruction.opcode != "fusion" and all(not array.dims for end in ends for array in end.arrays)

    def _content_of(self, instruction: Instruction, inside: Computation) -> _Content:
        if instruction.opcode != "fusion":
            return _single(instruction, inside)
        name = instruction.called
        if name not in self._contents:
            self._contents[name] = self._fused(self.module.called(name))
        return self._contents[name]

    def _fused(self, body: Computation) -> _Content:
        parts = [
            self._content_of(one, body)
            for one in body.instructions
            if one.opcode not in _STRUCTURE and not sends(one) and not is_free(one)
        ]
        return _Content(
            arithmetic=sum(part.arithmetic for part in parts),
            products=tuple(product for part in parts for product in part.products),
            kinds=frozenset(kind for part in parts for kind in part.kinds),
            unknown=tuple(name for part in parts for name in part.unknown),
        )

    def _kind_of(self, instruction: Instruction, kinds: frozenset[Kind]) -> Kind:
        if instruction.opcode != "fusion":
            return next(iter(kinds), Kind.UNKNOWN)
        return next((kind for kind in _NAMES_A_FUSION if kind in kinds), Kind.ELEMENTWISE)


def is_free(instruction: Instruction) -> bool:
    """Return whether a custom call is an annotation that runs nothing."""
    return instruction.opcode == "custom-call" and (
        target_of_call(instruction) in _FREE_CALLS or is_async_marker(instruction)
    )


def started(instruction: Instruction) -> Instruction:
    """Return the synchronous form of an asynchronous instruction: `slice-start` becomes a slice."""
    base = instruction.opcode.removesuffix("-start")
    if base == instruction.opcode or not isinstance(instruction.shape, tuple) or len(instruction.shape) < 2:
        return instruction
    result = instruction.shape[0] if base == "copy" else instruction.shape[1]
    return Instruction(instruction.name, base, result, instruction.argument, instruction.tail, instruction.root)


def branches_of(instruction: Instruction, module: Module) -> Iterator[Computation]:
    """Yield the branches of a conditional."""
    attributes = instruction.attributes
    listed = attributes.get("branch_computations", "").strip("{}").split(",")
    named = [attributes.get("true_computation", ""), attributes.get("false_computation", "")]
    for name in (*listed, *named):
        if name.strip():
            yield module.called(name.strip())


def _single(instruction: Instruction, inside: Computation) -> _Content:
    """Return the work of one instruction that calls no computation."""
    product = product_of(instruction, inside)
    if product is not None:
        return _Content(0, ((_product_kind(instruction), product),), frozenset())
    if instruction.opcode == "custom-call":
        return _library_call(instruction, inside)
    kind = _KINDS.get(instruction.opcode)
    if kind is None:
        return _Content(0, (), frozenset({Kind.UNKNOWN}), ((instruction.opcode, _NO_RULE),))
    return _Content(arithmetic(instruction, inside), (), frozenset({kind}))


def _library_call(instruction: Instruction, inside: Computation) -> _Content:
    target = target_of_call(instruction)
    stated = stated_flops(instruction)
    if stated is not None:
        return _Content(stated, (), frozenset({Kind.CUSTOM}))
    if instruction.operands and any(name in target.lower() for name in _SORTS):
        source = inside.operand(instruction, 0).array
        along = source.dims[-1] if source.dims else 1
        return _Content(source.elements * max(1, ceil(log2(max(along, 2)))), (), frozenset({Kind.SORT}))
    return _Content(0, (), frozenset({Kind.CUSTOM}), ((target or "custom-call", _NO_RULE),))


def _product_kind(instruction: Instruction) -> Kind:
    """Return DOT or CONV. XLA:TPU writes GEMMs as convolutions, so the name stack decides."""
    if "dim_labels" not in instruction.attributes:
        return Kind.DOT
    spatial = any(label.isdigit() for label in instruction.attributes["dim_labels"])
    named = instruction.op_name.rpartition("/")[2]
    return Kind.CONV if spatial and "dot_general" not in named else Kind.DOT
