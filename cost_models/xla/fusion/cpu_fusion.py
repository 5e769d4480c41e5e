"""Which values of a micro-step exist in memory where every reader computes again what is cheap, and a library takes
reductions: XLA on CPUs.

- A reduction and the elementwise operations around it are one call of a library (`library_calls.py`), which reads what
  it cannot take in from memory, broadcasts included.
- Everything else is fused into all that reads it, as often as it is read, but for two kinds of values: those that are
  costly to compute and have several readers, and those that are made of several large operands and cannot go into each
  of their readers. They are written, and all read them.
- What is cheap is written for products and calls that read it, and computed again by all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, FLATTEN, UNEVEN_PAD, Kind, Op, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.fusion import Kernel
from cost_models.xla.fusion.ynnpack import SHORT_REDUCTION
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_PICKS = frozenset({"gather", "slice", "dynamic_slice"})
_COSTLY = frozenset({Kind.EXPENSIVE, Kind.GATHER, Kind.REDUCE})
_COSTLY_PRIMITIVES = frozenset(
    {"div", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem", "rsqrt", "sqrt", "cbrt", "tanh", "erf"}
    | {"sin", "cos", "tan", "atan2", "sinh", "cosh"}
)
_MATRIX = 2  # dimensions
_APART = frozenset({"concatenate", "pad", UNEVEN_PAD, "dynamic_update_slice"})
"""What XLA computes by blocks of code of their own."""
_LONGEST = 15  # operations of a kernel that such a block is still added to
_ALIGNED = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE})
_REPEATING = frozenset({Kind.BROADCAST, Kind.GATHER})
"""Kinds that may read an element of their operand several times."""


@rule("cpu-fusion", source="CpuInstructionFusion, InstructionFusion")
def kernels_of(
    workload: Workload, ops: Sequence[Op], outputs: frozenset[int], profile: Profile, batch: int
) -> list[Kernel]:
    """Return the kernels of these operations in program order; `outputs` exist whatever it costs."""
    return Recomputing(workload, Graph(ops, outputs, profile), batch).kernels()


class Recomputing:
    """Decides what is written, from the last operation to the first, then names the kernels.

    exists  flags by tensor: it is in memory at some time
    shared  and all that reads it reads it from there
    length  by kernel, how many operations run in it so far
    within  by operation, the kernels in which it runs, named by their last operation (Python integers as bit sets)
    """

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.workload, self.graph, self.batch, self.profile = workload, graph, batch, graph.profile
        self.reads = [tuple(dict.fromkeys(map(graph.of, op.reads))) for op in graph.ops]
        library = self.profile.rules.get("ynnpack")
        self.calls: dict[int, tuple[int, frozenset[int]]] = library(workload, graph, batch) if library else {}
        self.loose = [self._is_loose(index) for index in range(len(graph.ops))]
        self.above = self._above()
        self.exists = bytearray(b"\1") * len(workload.tensors)
        self.shared = bytearray(b"\1") * len(workload.tensors)
        self.within = [0] * len(graph.ops)
        self.length = [0] * len(graph.ops)
        self.repeats = [False] * len(graph.ops)
        self.flat = self._flat()
        self.reshaped = self._reshaped()
        self.unfusible = self._unfusible()
        for index in range(len(graph.ops) - 1, -1, -1):
            self._decide(index)
        self.views = self._views()

    def _views(self) -> dict[int, int]:
        """Matrices that are only views, as what they are made of is in memory for all its readers."""
        flat = (op for op in self.graph.ops if op.primitive == FLATTEN)
        named = {op.writes[0]: self.graph.of(op.reads[0]) for op in flat}
        return {write: read for write, read in named.items() if self.shared[read]}

    def kernels(self) -> list[Kernel]:
        """The kernels in program order."""
        found: list[Kernel] = []
        for index, op in enumerate(self.graph.ops):
            writes = tuple(write for write in op.writes if write in self.graph.producer and self.exists[write])
            if writes and self._ends(index) and writes[0] not in self.views:
                found.append(self._kernel(index, writes))
        return found

    def _is_loose(self, index: int) -> bool:
        """Whether an operation is part of kernels of any number of operations."""
        op = self.graph.ops[index]
        if index in self.calls:
            return False
        return op.kind in self.profile.fusible or (op.kind is Kind.REDUCE and self._is_short(op))

    def _is_short(self, op: Op) -> bool:
        """Whether a reduction is over few elements: others are split in two, of which the first is a kernel."""
        return not op.reads or self._elements(op.reads[0]) <= SHORT_REDUCTION * self._elements(op.writes[0])

    def _ends(self, index: int) -> bool:
        return index not in self.calls or self.calls[index][0] == index

    def _decide(self, index: int) -> None:
        op = self.graph.ops[index]
        if self.graph.is_view(index):
            return
        if not self.loose[index]:
            self.within[index] = 1 << (self.calls[index][0] if index in self.calls else index)
            for write in op.writes if not self._ends(index) else ():
                self.exists[write] = self.shared[write] = False
            return
        for write in op.writes:
            refusing, taking = self._readers(write)
            everywhere = refusing | taking
            kept = self._is_kept(index, write, everywhere) or self._is_in_the_way(op, taking)
            self.shared[write] = kept
            self.exists[write] = kept or bool(refusing) or write in self.graph.outputs
            self.within[index] |= (1 << index if self.exists[write] else 0) | (0 if kept else taking)
        for kernel in _numbers(self.within[index]):
            self.length[kernel] += 1
        inner = (reader for write in op.writes if not self.exists[write] for reader in self._loose_readers(write))
        self.repeats[index] = op.kind in _REPEATING or any(self.repeats[reader] for reader in inner)

    def _readers(self, tensor: int) -> tuple[int, int]:
        """The kernels that read this from memory whatever happens, and those that may compute it."""
        refusing = taking = 0
        for reader in self.graph.readers.get(tensor, ()):
            if self.loose[reader] and not self._stands_alone(tensor, reader):
                taking |= self.within[reader]
            else:
                refusing |= self.within[reader]
        return refusing, taking

    def _loose_readers(self, tensor: int) -> list[int]:
        return [reader for reader in self.graph.readers.get(tensor, ()) if self.loose[reader]]

    def _stands_alone(self, tensor: int, reader: int) -> bool:
        """Whether one of both joins features: that is a kernel of its own."""
        source = self.graph.producer.get(tensor)
        return self._joins_features(reader) or (source is not None and self._joins_features(source))

    def _joins_features(self, index: int) -> bool:
        op = self.graph.ops[index]
        if op.primitive != "concatenate" or len(self.workload.tensors[op.writes[0]].shape) < 2:
            return False
        made = self.workload.tensors[op.writes[0]].shape
        return any(self.workload.tensors[read].shape[-1] != made[-1] for read in op.reads)

    def _is_in_the_way(self, op: Op, taking: int) -> bool:
        """Whether code for this would be too much for one of these kernels (FusionNodeIndexingEvaluation)."""
        return op.primitive in _APART and any(self.length[kernel] > _LONGEST for kernel in _numbers(taking))

    def _is_kept(self, index: int, tensor: int, everywhere: int) -> bool:
        """Whether all readers read this from memory."""
        if not everywhere:
            return False
        if self._is_costly(index):
            several = everywhere.bit_count() + (tensor in self.graph.outputs) > 1
            return several or any(self.repeats[reader] for reader in self._loose_readers(tensor))
        return tensor in self.unfusible

    def _is_costly(self, index: int) -> bool:
        op = self.graph.ops[index]
        if op.primitive == CONVERT and self.workload.tensors[op.writes[0]].dtype == "bfloat16":
            return True  # rounding to it looks for NaN
        return op.kind in _COSTLY or op.primitive in _COSTLY_PRIMITIVES

    def _unfusible(self) -> set[int]:
        """What is made of several large operands and cannot go into each of its readers by all ways."""
        found: set[int] = set()
        known: dict[tuple[int, int], bool] = {}
        for index in range(len(self.graph.ops) - 1, -1, -1):
            if not self.loose[index] or self.graph.is_view(index) or self._is_unary(index):
                continue
            for write in self.graph.ops[index].writes:
                readers = self.graph.readers.get(write, ())
                if write in self.graph.outputs or not all(self._goes(index, r, found, known) for r in readers):
                    found.add(write)
        return found

    def _goes(self, source: int, reader: int, unfusible: set[int], known: dict[tuple[int, int], bool]) -> bool:
        """Whether an operation can be fused into this one by all ways (InstructionFusion::CanFuseOnAllPaths)."""
        if source == reader:
            return True
        if not self.loose[reader]:
            return False
        if (source, reader) not in known:
            known[source, reader] = all(
                read not in unfusible
                and self._may_fuse(read, between, reader)
                and self._goes(source, between, unfusible, known)
                for read, between in self._on_the_way(source, reader)
            )
        return known[source, reader]

    def _on_the_way(self, source: int, reader: int) -> Iterator[tuple[int, int]]:
        for read in self.reads[reader]:
            between = self.graph.producer.get(read)
            if between is not None and (between == source or self.above[between] >> source & 1):
                yield read, between

    def _may_fuse(self, tensor: int, source: int, reader: int) -> bool:
        if not self.loose[source] or self._stands_alone(tensor, reader):
            return False
        if not self._is_costly(source):
            return True
        alone = len(self.graph.readers.get(tensor, ())) == 1 and tensor not in self.graph.outputs
        return alone and self.graph.ops[reader].kind not in _REPEATING

    def _is_unary(self, index: int) -> bool:
        """At most one operand is large, or all together are no larger than the result."""
        op = self.graph.ops[index]
        rank = max((self._rank(write) for write in op.writes), default=0)
        large = [read for read in op.reads if not self._is_broadcast(read) and self._rank(read) >= rank]
        if len(large) <= 1:
            return True
        operands = sum(self._elements(read) for read in self.reads[index])
        return operands <= sum(self._elements(write) for write in op.writes)

    def _is_broadcast(self, tensor: int) -> bool:
        source = self.graph.producer.get(self.graph.of(tensor))
        return source is not None and self.graph.ops[source].kind is Kind.BROADCAST

    def _rank(self, tensor: int) -> int:
        return sum(dim != Affine(1) for dim in self.workload.tensors[tensor].shape)

    def _elements(self, tensor: int) -> float:
        return self.workload.tensors[tensor].elements.at(self.batch)

    def _above(self) -> list[int]:
        """By operation, all that it depends on."""
        found: list[int] = []
        for index in range(len(self.graph.ops)):
            mask = 0
            for read in self.reads[index]:
                source = self.graph.producer.get(read)
                if source is not None and source < index:
                    mask |= found[source] | 1 << source
            found.append(mask)
        return found

    def _kernel(self, index: int, writes: tuple[int, ...]) -> Kernel:
        leaves, inner, picked, aligned = self._upstream(index)
        made = [self.workload.tensors[write] for write in writes]
        in_place = tuple(read for read in aligned if self.workload.tensors[read] in made)
        op = self.graph.ops[index]
        body: tuple[Kernel, ...] = ()
        if op.body:
            body = tuple(kernels_of(self.workload, op.body, frozenset(op.results), self.profile, self.batch))
        flops = Affine.sum(self.graph.ops[i].flops for i in inner)
        products = (self.graph.ops[i] for i in inner if self.graph.ops[i].kind.is_product)
        computing = (self.graph.ops[i] for i in inner if self.graph.ops[i].primitive != FLATTEN)
        main = next(products, next(computing, op))
        return Kernel(main, tuple(leaves), writes, flops, len(inner), tuple(picked.items()), body, in_place)

    def _upstream(self, index: int) -> tuple[list[int], list[int], dict[int, int], tuple[int, ...]]:
        """(tensors read from memory, operations that run, tensors read in part, tensors read element by element) of
        the kernel that ends here."""
        call = self.calls[index][1] if index in self.calls else frozenset()
        leaves: dict[int, None] = {}
        inner: dict[int, None] = {index: None}
        picked: dict[int, int] = {}
        whole: set[int] = set()
        moved: set[int] = set()
        pending = [index]
        while pending:
            op = self.graph.ops[at := pending.pop()]
            moved.update(self.graph.of(read) for read in op.reads if not self._looks_alike(read, self.graph.of(read)))
            for read in self.reads[at]:
                source = self.graph.producer.get(read)
                if source is not None and self._runs_in(read, source, at, call):
                    if source not in inner:
                        inner[source] = None
                        pending.append(source)
                    continue
                leaves[read := self.views.get(read, read)] = None
                if op.kind not in _ALIGNED:
                    moved.add(read)
                if op.primitive in _PICKS and read == self.graph.of(op.reads[0]):
                    picked[read] = op.writes[0]
                else:
                    whole.add(read)
        moved.update(self._behind(inner))
        aligned = () if self.reshaped.issuperset(self.graph.ops[index].writes) else tuple(leaves)
        if not call and not self.flat.isdisjoint(self.graph.ops[index].writes):
            aligned = ()
        aligned = tuple(read for read in aligned if read not in moved and (call or read not in self.flat))
        return list(leaves), list(inner), {read: made for read, made in picked.items() if read not in whole}, aligned

    def _flat(self) -> set[int]:
        """What products read or write as matrices though it has more dimensions."""
        products = (op for op in self.graph.ops if op.kind is Kind.DOT and op.gemm and op.gemm[0] == Affine(1))
        ends = {self.graph.of(end) for op in products for end in (*op.reads, *op.writes)}
        return {end for end in ends if len(self.workload.tensors[end].shape) > _MATRIX}

    def _reshaped(self) -> set[int]:
        """What all readers see in another shape."""
        seen: dict[int, bool] = {}
        for op in self.graph.ops:
            for read in op.reads if op.kind is not Kind.VIEW else ():
                root = self.graph.of(read)
                seen[root] = seen.get(root, True) and not self._looks_alike(read, root)
        return {tensor for tensor, always in seen.items() if always}

    def _looks_alike(self, one: int, other: int) -> bool:
        shapes = ([dim for dim in self.workload.tensors[end].shape if dim != Affine(1)] for end in (one, other))
        return next(shapes) == next(shapes)

    def _behind(self, inner: Iterable[int]) -> set[int]:
        """What these operations read behind one of them that moves or repeats what it reads."""
        found: set[int] = set()
        for at in sorted(inner, reverse=True):
            if self.graph.ops[at].kind not in _ALIGNED or not found.isdisjoint(self.graph.ops[at].writes):
                found.update(self.reads[at])
        return found

    def _runs_in(self, tensor: int, source: int, reader: int, call: Iterable[int]) -> bool:
        """Whether what makes a tensor runs in the kernel of this reader."""
        if reader in self.calls:
            return source in call
        return (
            self.loose[source]
            and self.loose[reader]
            and not self.shared[tensor]
            and not self._stands_alone(tensor, reader)
        )


def _numbers(mask: int) -> Iterator[int]:
    """The members of a bit set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
