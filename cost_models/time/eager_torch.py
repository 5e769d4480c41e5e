"""Models stacks with one library kernel per layer and pass, as eager PyTorch: replaces each layer's operations.

A layer without a product (activation, dropout, softmax, normalisation, pooling, sum) is one kernel a pass. It reads
what other layers made and writes what other layers read. An autograd keeps a layer's operands, results, masks and
statistics for the backward pass, and nothing between them. Where sums run along the last dimensions a row stays on the
chip; other sums (statistics of channels, gradients of scales) need a kernel of their own before, or beside, what is
made of them.

Layers with products keep their kernels: what goes in and out is written, and fusion decides inside. A bias is added by
the kernel of the product (cuBLASLt's epilogue: PyTorch from 1.12 on, pull requests 72148 and 72728).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Workload
from cost_models.xla.rules import rule

_KEPT = frozenset(
    {Kind.DOT, Kind.CONV, Kind.GATHER, Kind.SCATTER, Kind.SORT, Kind.CUMULATIVE, Kind.LOOP, Kind.BRANCH, Kind.BARRIER}
    | {Kind.COLLECTIVE, Kind.ATTENTION, Kind.LSTM, Kind.CUSTOM, Kind.UNKNOWN}
)
"""Kinds of which a layer's kernels are left as they are."""
_LOSS = "compile_loss"  # a chain of kernels in every library
_SMALL = 1 / 16  # of a layer's largest operand: statistics, which are kept and not made again
_LOOKS = 256
_PHILOX_OVER_THREEFRY = 0.5
"""Arithmetic of a random word in CUDA's libraries (Philox 4x32, 10 rounds for four words) over JAX's (Threefry 2x32, 20
rounds for two): Salmon et al. 2011, section 4."""

_Owner = tuple[str, Phase, int]
_Reads = Mapping[int, tuple[int, ...]]
"""The tensors that each operation reads, by the first tensor that it writes."""


@lru_cache(maxsize=64)
def library_kernels(
    workload: Workload, has_kernel: Callable[[str, Phase], bool] | None = None, *, biases_apart: bool = False
) -> Workload:
    """The same step with one operation for each kernel of a layer without products, and fences between layers.

    has_kernel    whether the library has one for a layer of this name in this pass; None: for all of them
    biases_apart  whether biases have kernels of their own
    """
    if not biases_apart and has_kernel is None:
        workload = replace(workload, ops=_with_biases(workload))
    return _EagerRewriting(workload, has_kernel).run()


rule("layer-kernels", "PyTorch: a kernel a layer and pass; TensorFlow: fused_batch_norm, nn_grad.py")(library_kernels)


def has_kernel_in_tensorflow(layer: str, phase: Phase) -> bool:
    """Return whether TensorFlow 2 has one kernel for a layer of this name in this pass.

    Keras's `LayerNormalization` calls `fused_batch_norm` (its `_fused_can_be_used`), and softmax is one forward
    (`nn_grad.py` has its gradient in parts).
    """
    name = layer.rpartition("/")[2]
    return "layer_normalization" in name or (name.startswith("softmax") and phase is Phase.FORWARD)


def _with_biases(workload: Workload) -> tuple[Op, ...]:
    """The same operations, where a product and the sum of it and what is broadcast in its layer are one."""
    readers = Counter([*workload.outputs, *(read for op in workload.ops for read in op.reads)])
    producer = {write: op for op in workload.ops for write in op.writes}
    joined: dict[int, Op] = {}  # by what the sum writes
    inside: set[int] = set()
    for op in workload.ops:
        for product, bias in permutations(op.reads, 2) if op.primitive == "add" and len(op.reads) == 2 else ():
            of, from_bias = producer.get(product), producer.get(bias)
            if of is None or from_bias is None or from_bias.kind is not Kind.BROADCAST or readers[product] > 1:
                continue
            if of.kind is Kind.DOT and (of.layer, of.phase) == (op.layer, op.phase):
                joined[op.writes[0]] = replace(of, reads=(*of.reads, bias), writes=op.writes, flops=of.flops + op.flops)
                inside.add(product)
    outer = (op for op in workload.ops if not op.writes or op.writes[0] not in inside)
    return tuple(joined.get(op.writes[0], op) if op.writes else op for op in outer)


@dataclass
class _Segment:
    """Operations of one layer and pass, without an operation of another that needs their results between them."""

    owner: _Owner
    in_parts: bool  # several kernels: its layer has a product, in this pass or another, or the library has no kernel
    ops: list[Op] = field(default_factory=list)
    made: set[int] = field(default_factory=set)

    def add(self, op: Op) -> None:
        self.ops.append(op)
        self.made.update(op.writes)

    @property
    def is_kernel(self) -> bool:
        """Whether a library has a kernel for all of it."""
        layer, phase, _ = self.owner
        plain = bool(layer) and phase is not Phase.UPDATE and not layer.startswith(_LOSS) and not self.in_parts
        return plain and not any(op.kind in _KEPT for op in self.ops)

    def largest(self, size: Sequence[float]) -> float:
        """Bytes of the largest operand that it does not make itself."""
        return max((size[read] for op in self.ops for read in op.reads if read not in self.made), default=0.0)


class _EagerRewriting:
    def __init__(self, workload: Workload, has_kernel: Callable[[str, Phase], bool] | None) -> None:
        self.workload = workload
        self.size = [size.at(workload.local_batch) for size in workload.sizes]
        self.segments = _Ordering(workload.ops, has_kernel).segments()
        self.home = {write: one for one in self.segments for write in one.made}
        self.producer = {write: op for op in workload.ops for write in op.writes}
        self.results = self._results()

    def run(self) -> Workload:
        reads = [self._reads_of(one) for one in self.segments]
        outside = self._read_outside(reads)
        ops: list[Op] = []
        for segment, of_each in zip(self.segments, reads, strict=True):
            ops += self._kernels(segment, of_each, outside) if segment.is_kernel else segment.ops
        made = {write for op in ops for write in op.writes}
        fenced = tuple(tensor for tensor in self._crossing() if tensor in made)
        fence = Op(Kind.BARRIER, "layers", fenced, (), phase=Phase.BACKWARD)
        return replace(self.workload, ops=(*ops, fence))

    def _results(self) -> set[int]:
        """Return the tensors that one layer writes and another layer reads."""
        return {
            read
            for segment in self.segments
            for op in segment.ops
            for read in op.reads
            if read in self.home and self.home[read].owner[0] != segment.owner[0]
        }

    def _crossing(self) -> dict[int, None]:
        """Return the tensors that cross segments, in program order. Updates read tensors that exist anyway."""
        found: dict[int, None] = {}
        for segment in self.segments:
            for op in segment.ops if segment.owner[1] is not Phase.UPDATE else ():
                found.update({read: None for read in op.reads if self.home.get(read, segment) is not segment})
        return found

    def _reads_of(self, segment: _Segment) -> _Reads:
        """Return the tensors that each operation reads, as far as libraries store them."""
        if not segment.is_kernel:
            return {op.writes[0]: op.reads for op in segment.ops if op.writes}
        return {op.writes[0]: tuple(self._as_kept(segment, op.reads)) for op in segment.ops if op.writes}

    def _as_kept(self, segment: _Segment, reads: Iterable[int]) -> Iterator[int]:
        """Reads of a backward pass from the same layer's forward pass as what an autograd keeps of it."""
        layer, phase, _ = segment.owner
        for read in reads:
            home = self.home.get(read)
            if phase is Phase.BACKWARD and home and home.owner[:2] == (layer, Phase.FORWARD) and home.is_kernel:
                yield from self._kept_for(read, home)
            else:
                yield read

    def _kept_for(self, tensor: int, home: _Segment) -> dict[int, None]:
        """Return the tensors that a forward pass stores to recompute this one: operands, results, masks, statistics."""
        found: dict[int, None] = {}
        small = _SMALL * home.largest(self.size)
        pending, looks = [tensor], 0
        while pending and looks < _LOOKS:
            at, looks = pending.pop(), looks + 1
            if at not in home.made or at in self.results or self.size[at] <= small or self._is_mask(at):
                found[at] = None
            else:
                pending.extend(self.producer[at].reads)
        return found

    def _is_mask(self, tensor: int) -> bool:
        return self.workload.tensors[tensor].dtype == "bool" or self.producer[tensor].kind is Kind.RANDOM

    def _read_outside(self, reads: Sequence[_Reads]) -> set[int]:
        """Everything that is read outside of the segment that makes it, and what leaves the step."""
        found = set(self.workload.outputs) | {variable.result for variable in self.workload.variables}
        for segment, of_each in zip(self.segments, reads, strict=True):
            found.update(read for ends in of_each.values() for read in ends if read not in segment.made)
        return found

    def _kernels(self, segment: _Segment, reads_of: _Reads, outside: set[int]) -> Iterator[Op]:
        """One operation a kernel: sums that are not along rows first, then everything else."""
        needed = [write for op in segment.ops for write in op.writes if write in outside]
        sums = sorted(op.writes[0] for op in segment.ops if self._sums_across(op))
        small = _SMALL * max((self.size[read] for reads in reads_of.values() for read in reads), default=0.0)
        of_sums = [write for write in needed if sums and (write in sums or self.size[write] <= small)]
        rest = [write for write in needed if write not in of_sums]
        if sums:
            yield self._kernel(segment, reads_of, sums, of_sums or sums[:1], frozenset())
        if rest:
            yield self._kernel(segment, reads_of, rest, rest, frozenset(sums))

    def _kernel(
        self, segment: _Segment, reads_of: _Reads, ends: Sequence[int], writes: Sequence[int], given: frozenset[int]
    ) -> Op:
        """The kernel that works out `ends`, with `given` known, and writes `writes`."""
        reads: dict[int, None] = {}
        inside: dict[int, Op] = {}
        pending = list(ends)
        while pending:
            op = self.producer[pending.pop()]
            if op.writes[0] in inside:
                continue
            inside[op.writes[0]] = op
            own = [read for read in reads_of[op.writes[0]] if read in segment.made]
            reads.update({read: None for read in reads_of[op.writes[0]] if read not in segment.made})
            pending += [read for read in own if read not in given]
        flops = Affine.sum(_flops(op) for op in inside.values())
        layer, phase, region = segment.owner
        return Op(Kind.CUSTOM, "library", tuple(reads), tuple(writes), flops, phase=phase, layer=layer, region=region)

    def _sums_across(self, op: Op) -> bool:
        """Whether this sums over other dimensions than the last ones."""
        if op.kind is not Kind.REDUCE or not op.reads:
            return False
        source, made = (self.workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
        return bool(made) and source[: len(made)] != made


def _with_products(ops: Sequence[Op]) -> set[str]:
    """Layers that multiply, themselves or in a scope of theirs."""
    layers = {op.layer for op in ops if op.kind.is_product}
    return layers | {layer.rpartition("/")[0] for layer in layers}


def _flops(op: Op) -> Affine:
    return op.flops * _PHILOX_OVER_THREEFRY if op.kind is Kind.RANDOM else op.flops


class _Ordering:
    """Operations by layer and pass, in an order in which each reads what came before. Updates come last."""

    def __init__(self, ops: Sequence[Op], has_kernel: Callable[[str, Phase], bool] | None) -> None:
        self.ops = ops
        self.has_kernel = has_kernel
        self.with_products = _with_products(ops)
        self.open: dict[_Owner, _Segment] = {}
        self.home: dict[int, _Owner] = {}
        self.done: list[_Segment] = []

    def segments(self) -> list[_Segment]:
        later: list[Op] = []
        deferred: set[int] = set()
        for op in self.ops:
            if op.phase is Phase.UPDATE:
                later.append(op)
                deferred.update(op.writes)
                continue
            if not deferred.isdisjoint(op.reads):
                self._take(later)
                later, deferred = [], set()
            self._take([op])
        self._take(later)
        for owner in list(self.open):
            self._close(owner)
        return self.done

    def _take(self, ops: Sequence[Op]) -> None:
        for op in ops:
            owner = (op.layer, op.phase, op.region)
            for read in op.reads:
                if self.home.get(read, owner) != owner:
                    self._close(self.home[read])
            self.open.setdefault(owner, _Segment(owner, self._is_in_parts(op))).add(op)
            self.home.update(dict.fromkeys(op.writes, owner))
            if not op.layer or op.phase is Phase.UPDATE:
                self._close(owner)

    def _is_in_parts(self, op: Op) -> bool:
        return op.layer in self.with_products or not (self.has_kernel is None or self.has_kernel(op.layer, op.phase))

    def _close(self, owner: _Owner) -> None:
        segment = self.open.pop(owner)
        for write in segment.made:
            del self.home[write]
        self.done.append(segment)
