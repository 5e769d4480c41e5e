"""Models fusion on XLA:CPU: decides which values are written to memory, and returns the kernels that compute them.

- A reduction and the elementwise operations around it are one call of a library (`ynnpack.py`). The call reads operands
  that it cannot compute from memory, broadcasts included.
- Everything else is fused into all of its readers, except two kinds of values: costly values with several readers, and
  values that are made of several large operands and cannot go into each of their readers. They are written, and all
  readers read them.
- A cheap value is written for the products and calls that read it, and computed again by all other readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, FLATTEN, Kind, Op, Workload
from cost_models.xla.dataflow import MATRIX_RANK, ONE_BY_ONE, PADS, READS_PART, Graph, members
from cost_models.xla.fusion.kernel import Kernel
from cost_models.xla.fusion.ynnpack import SHORT_REDUCTION
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_COSTLY = frozenset({Kind.EXPENSIVE, Kind.GATHER, Kind.REDUCE})
_COSTLY_PRIMITIVES = frozenset(
    {"div", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem", "rsqrt", "sqrt", "cbrt", "tanh", "erf"}
    | {"sin", "cos", "tan", "atan2", "sinh", "cosh"}
)
_CODE_BLOCKS = PADS | {"concatenate", "dynamic_update_slice"}
"""Primitives for which XLA generates blocks of code of their own."""
_LONGEST = 15  # operations of a kernel to which such a block is still added
_REPEATING = frozenset({Kind.BROADCAST, Kind.GATHER})
"""Kinds that may read an element of their operand several times."""


@rule("cpu-fusion", source="CpuInstructionFusion, InstructionFusion")
def cpu_fusion(
    workload: Workload, ops: Sequence[Op], outputs: frozenset[int], profile: Profile, batch: int
) -> list[Kernel]:
    """Return the kernels of these operations in program order; `outputs` are written whatever it costs."""
    return CpuFusion(workload, Graph(ops, outputs, profile), batch).kernels()


class CpuFusion:
    """Decides which values are written, from the last operation to the first, then names the kernels.

    loose   flags by operation: it is part of kernels of any number of operations
    exists  flags by tensor: it is in memory at some time
    shared  flags by tensor: all of its readers read it from memory
    length  by kernel, the operations that run in it so far
    within  by operation, the kernels in which it runs, named by their last operation (bit sets)
    """

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.workload, self.graph, self.batch, self.profile = workload, graph, batch, graph.profile
        library = self.profile.rules.get("ynnpack")
        self.calls: dict[int, tuple[int, frozenset[int]]] = library(workload, graph, batch) if library else {}
        self.loose = [self._is_loose(index) for index in range(len(graph.ops))]
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
        """Return the matrices that are only views of a tensor that all of its readers read from memory."""
        flat = (op for op in self.graph.ops if op.primitive == FLATTEN)
        named = {op.writes[0]: self.graph.of(op.reads[0]) for op in flat}
        return {write: read for write, read in named.items() if self.shared[read]}

    def kernels(self) -> list[Kernel]:
        """Return the kernels in program order."""
        found: list[Kernel] = []
        for index, op in enumerate(self.graph.ops):
            writes = tuple(write for write in op.writes if write in self.graph.producer and self.exists[write])
            if writes and self._ends(index) and writes[0] not in self.views:
                found.append(self._kernel(index, writes))
        return found

    def _is_loose(self, index: int) -> bool:
        op = self.graph.ops[index]
        if index in self.calls:
            return False
        return op.kind in self.profile.fusible or (op.kind is Kind.REDUCE and self._is_short(op))

    def _is_short(self, op: Op) -> bool:
        """Return whether a reduction is over few elements: XLA splits others in two, of which the first is a kernel."""
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
            kept = self._is_written_for_all(index, write, everywhere) or self._makes_kernel_too_long(op, taking)
            self.shared[write] = kept
            self.exists[write] = kept or bool(refusing) or write in self.graph.outputs
            self.within[index] |= (1 << index if self.exists[write] else 0) | (0 if kept else taking)
        for kernel in members(self.within[index]):
            self.length[kernel] += 1
        inner = (reader for write in op.writes if not self.exists[write] for reader in self._loose_readers(write))
        self.repeats[index] = op.kind in _REPEATING or any(self.repeats[reader] for reader in inner)

    def _readers(self, tensor: int) -> tuple[int, int]:
        """Return the kernels that read a tensor from memory in any case, and those that may compute it."""
        refusing = taking = 0
        for reader in self.graph.readers.get(tensor, ()):
            if self.loose[reader] and not self._is_apart(tensor, reader):
                taking |= self.within[reader]
            else:
                refusing |= self.within[reader]
        return refusing, taking

    def _loose_readers(self, tensor: int) -> list[int]:
        return [reader for reader in self.graph.readers.get(tensor, ()) if self.loose[reader]]

    def _is_apart(self, tensor: int, reader: int) -> bool:
        """Return whether the maker or the reader joins features, which is a kernel of its own."""
        source = self.graph.producer.get(tensor)
        return self._joins_features(reader) or (source is not None and self._joins_features(source))

    def _joins_features(self, index: int) -> bool:
        op = self.graph.ops[index]
        if op.primitive != "concatenate" or len(self.workload.tensors[op.writes[0]].shape) < MATRIX_RANK:
            return False
        made = self.workload.tensors[op.writes[0]].shape
        return any(self.workload.tensors[read].shape[-1] != made[-1] for read in op.reads)

    def _makes_kernel_too_long(self, op: Op, taking: int) -> bool:
        """Return whether an operation's code would be too much for a kernel (FusionNodeIndexingEvaluation)."""
        return op.primitive in _CODE_BLOCKS and any(self.length[kernel] > _LONGEST for kernel in members(taking))

    def _is_written_for_all(self, index: int, tensor: int, everywhere: int) -> bool:
        """Return whether all readers read a tensor from memory; `everywhere` are the kernels that read it."""
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
        """Return the tensors that are made of several large operands and cannot go into all of their readers."""
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
        """Return whether an operation can be fused into a reader on all paths (CanFuseOnAllPaths)."""
        if source == reader:
            return True
        if not self.loose[reader]:
            return False
        if (source, reader) not in known:
            known[source, reader] = all(
                read not in unfusible
                and self._may_fuse(read, between, reader)
                and self._goes(source, between, unfusible, known)
                for read, between in self._paths(source, reader)
            )
        return known[source, reader]

    def _paths(self, source: int, reader: int) -> Iterator[tuple[int, int]]:
        """Yield (operand of the reader, its maker) where that is the source or depends on it."""
        for read in self.graph.reads[reader]:
            between = self.graph.producer.get(read)
            if between is not None and (between == source or self.graph.ancestors[between] >> source & 1):
                yield read, between

    def _may_fuse(self, tensor: int, source: int, reader: int) -> bool:
        if not self.loose[source] or self._is_apart(tensor, reader):
            return False
        if not self._is_costly(source):
            return True
        alone = len(self.graph.readers.get(tensor, ())) == 1 and tensor not in self.graph.outputs
        return alone and self.graph.ops[reader].kind not in _REPEATING

    def _is_unary(self, index: int) -> bool:
        """Return whether at most one operand is large, or all together are no larger than the result."""
        op = self.graph.ops[index]
        rank = max((self._rank(write) for write in op.writes), default=0)
        large = [read for read in op.reads if not self.graph.is_broadcast(read) and self._rank(read) >= rank]
        if len(large) <= 1:
            return True
        operands = sum(self._elements(read) for read in self.graph.reads[index])
        return operands <= sum(self._elements(write) for write in op.writes)

    def _rank(self, tensor: int) -> int:
        return sum(dim != Affine(1) for dim in self.workload.tensors[tensor].shape)

    def _elements(self, tensor: int) -> float:
        return self.workload.tensors[tensor].elements.at(self.batch)

    def _kernel(self, index: int, writes: tuple[int, ...]) -> Kernel:
        inside = self._upstream(index)
        made = [self.workload.tensors[write] for write in writes]
        in_place = tuple(read for read in self._aligned(index, inside) if self.workload.tensors[read] in made)
        op = self.graph.ops[index]
        body: tuple[Kernel, ...] = ()
        if op.body:
            body = tuple(cpu_fusion(self.workload, op.body, frozenset(op.results), self.profile, self.batch))
        ops = [self.graph.ops[i] for i in inside.operations]
        products = (one for one in ops if one.kind.is_product)
        computing = (one for one in ops if one.primitive != FLATTEN)
        main = next(products, next(computing, op))
        flops = Affine.sum(one.flops for one in ops)
        return Kernel(main, tuple(inside.leaves), writes, flops, len(ops), inside.read_in_part(), body, in_place)

    def _upstream(self, index: int) -> _Inside:
        """Return the inside of the kernel that ends with an operation."""
        inside = _Inside(self._call(index), operations={index: None})
        pending = [index]
        while pending:
            at = pending.pop()
            op = self.graph.ops[at]
            inside.moved.update(
                self.graph.of(read) for read in op.reads if not self._looks_alike(read, self.graph.of(read))
            )
            for read in self.graph.reads[at]:
                source = self.graph.producer.get(read)
                if source is None or not self._runs_in(read, source, at, inside.call):
                    self._note_leaf(inside, op, self.views.get(read, read))
                elif source not in inside.operations:
                    inside.operations[source] = None
                    pending.append(source)
        inside.moved.update(self._behind(inside.operations))
        return inside

    def _note_leaf(self, inside: _Inside, op: Op, read: int) -> None:
        inside.leaves[read] = None
        if op.kind not in ONE_BY_ONE:
            inside.moved.add(read)
        if op.primitive in READS_PART and read == self.graph.of(op.reads[0]):
            inside.picked[read] = op.writes[0]
        else:
            inside.whole.add(read)

    def _aligned(self, index: int, inside: _Inside) -> Iterator[int]:
        """Yield the tensors that a kernel reads from memory element by element."""
        writes = self.graph.ops[index].writes
        if self.reshaped.issuperset(writes) or (not inside.call and not self.flat.isdisjoint(writes)):
            return
        for read in inside.leaves:
            if read not in inside.moved and (inside.call or read not in self.flat):
                yield read

    def _call(self, index: int) -> frozenset[int]:
        return self.calls[index][1] if index in self.calls else frozenset()

    def _flat(self) -> set[int]:
        """Return the tensors of more dimensions that products read or write as matrices."""
        products = (op for op in self.graph.ops if op.kind is Kind.DOT and op.gemm and op.gemm[0] == Affine(1))
        ends = {self.graph.of(end) for op in products for end in (*op.reads, *op.writes)}
        return {end for end in ends if len(self.workload.tensors[end].shape) > MATRIX_RANK}

    def _reshaped(self) -> set[int]:
        """Return the tensors that all readers read in another shape."""
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
        """Return the tensors that these operations read behind an operation that moves or repeats its operands."""
        found: set[int] = set()
        for at in sorted(inner, reverse=True):
            if self.graph.ops[at].kind not in ONE_BY_ONE or not found.isdisjoint(self.graph.ops[at].writes):
                found.update(self.graph.reads[at])
        return found

    def _runs_in(self, tensor: int, source: int, reader: int, call: frozenset[int]) -> bool:
        """Return whether the maker of a tensor runs in the kernel of this reader."""
        if reader in self.calls:
            return source in call
        fused = self.loose[source] and self.loose[reader] and not self.shared[tensor]
        return fused and not self._is_apart(tensor, reader)


@dataclass
class _Inside:
    """The inside of a kernel.

    call        operations of the library call that the kernel is (empty: none)
    operations  that run in it, the last one first
    leaves      tensors that it reads from memory
    picked      (tensor read in part, tensor made of that part); `whole` are those that are read in full as well
    moved       tensors that are read in another order or shape than the result is written
    """

    call: frozenset[int]
    operations: dict[int, None]
    leaves: dict[int, None] = field(default_factory=dict)
    picked: dict[int, int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)

    def read_in_part(self) -> tuple[tuple[int, int], ...]:
        return tuple((read, made) for read, made in self.picked.items() if read not in self.whole)
