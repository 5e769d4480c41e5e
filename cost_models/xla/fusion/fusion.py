"""Which values of a micro-step ever exist in memory, and in which kernels: what a compiler's fusion makes of a
Workload.

XLA runs many elementwise operations as one kernel that reads its inputs once and writes its result once. A value
inside such a kernel never reaches memory. The rules here follow what XLA does, not its code:

- products, convolutions, windows, reductions, scatters, sorts and loops always write their results;
- anything else is fusible: it exists only where it leaves the step, feeds an operation that cannot take producers in,
crosses the border of a rematerialized region, or is cheaper to keep than to compute again in each of its readers;
- long chains (random bits, erfc) with several readers are kept where a target says so.

Sets of operations and tensors are Python integers used as bit sets: steps have thousands of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cost_models.workload.affine import Affine
from cost_models.workload.workload import RELAYOUT, UNEVEN_PAD, Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import Graph, is_narrow
from cost_models.xla.fusion.gemm_epilogue import Epilogues
from cost_models.xla.fusion.recompute_cost import Arithmetic, as_computed, members
from cost_models.xla.fusion.softmax_rows import Rows
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_PICKS = frozenset({"gather", "slice", "dynamic_slice"})
_LONG_CHAINS = frozenset({Kind.EXPENSIVE, Kind.RANDOM})
_CHEAP = frozenset({"add", "sub", "mul", "max", "min", "neg", "abs"})
_SHORT_CHAIN = 4  # operations: XLA's products take at most four parameters an operand
_NARROW_SHARE = 0.4  # of a float32 value's bytes: as many narrow elements are a half
_SMALL_SHARE = 1e-5  # of the largest tensor: what is read again for less than that is not worth a decision
_MAX_VISITS = 64  # operations looked at upstream of one reader before giving up: fused groups are smaller


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `reads` and `writes` are tensors that exist in memory; loops carry one iteration's kernels.

    flops     of everything fused in, recomputation included
    picked    (tensor read, tensor made of it): no more of the first is read than the second holds
    in_place  reads whose place the one result may take: as many bytes, read element for element
    """

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: Affine
    fused: int = 1
    picked: tuple[tuple[int, int], ...] = ()
    body: tuple[Kernel, ...] = ()
    in_place: tuple[int, ...] = ()


class Fusion:
    """Decides which fusible values are kept, then names the kernels."""

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.graph, self.workload = graph, workload
        self.batch = batch
        self.profile = graph.profile
        self.size = [size.at(batch) for size in workload.sizes]
        self.computed = as_computed(workload, graph, self.size)
        self.arithmetic: Arithmetic = self._rule("recompute-cost", Arithmetic)(workload, graph, batch)
        self.narrow = is_narrow(workload)
        self.small = _SMALL_SHARE * max(self.size, default=0.0)
        self.reads = [tuple(dict.fromkeys(map(graph.of, op.reads))) for op in graph.ops]
        self.fusible = [op.kind in self.profile.fusible for op in graph.ops]
        self.rows = Rows(workload, graph, batch)
        self.must = self._must()
        self.epilogues: Epilogues = self._rule("gemm-epilogue", Epilogues)(workload, graph, self.size, self.must)
        for index in self.epilogues.products:
            self.fusible[index] = True
        columns = self._rule("column-reduction", lambda *_: frozenset())
        self.before_columns: frozenset[int] = columns(workload, graph, batch, self.fusible)
        self.exists = self._without_choice()
        for _ in range(2):  # readers depend on what is kept and the other way round: twice settles it
            self._settle()

    def _rule(self, name: str, other: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rule of the profile, the other callable if the rule is off."""
        return self.profile.rules.get(name, other)

    def _without_choice(self) -> bytearray:
        """Flags by tensor: whether it is in memory at some time, as far as that is no choice."""
        flags = bytearray(b"\1") * len(self.size)
        for tensor, index in self.graph.producer.items():
            flags[tensor] = tensor in self.must or not self.fusible[index]
        return flags

    def kernels(self) -> list[Kernel]:
        """The kernels in program order."""
        found: list[Kernel] = []
        for index, op in enumerate(self.graph.ops):
            writes = tuple(write for write in op.writes if write in self.graph.producer and self.exists[write])
            if writes:
                found.append(self._kernel(index, op, writes))
        return self._joined(found) if self.profile.fusible else found

    def _joined(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Updates of one variable's state are one kernel with several results: they read the same gradient."""
        joined: list[Kernel] = []
        home: dict[int, int] = {}
        made_at: dict[int, int] = {}
        for kernel in kernels:
            place = self._place_to_join(kernel, home, made_at)
            if place is None:
                place = len(joined)
                joined.append(kernel)
            else:
                joined[place] = _together(joined[place], kernel)
            made_at.update(dict.fromkeys(kernel.writes, place))
            if self._is_update(kernel):
                shape = self.workload.tensors[kernel.writes[0]].shape
                ends = (end for end in (*kernel.reads, *kernel.writes) if self.workload.tensors[end].shape == shape)
                home.update(dict.fromkeys(ends, place))
        return joined

    def _place_to_join(self, kernel: Kernel, home: dict[int, int], made_at: dict[int, int]) -> int | None:
        if not self._is_update(kernel):
            return None
        shape = self.workload.tensors[kernel.writes[0]].shape
        same = (read for read in kernel.reads if self.workload.tensors[read].shape == shape)
        place = next((home[read] for read in same if read in home), None)
        if place is None or any(made_at.get(read, -1) > place for read in kernel.reads):
            return None
        return place

    def _is_update(self, kernel: Kernel) -> bool:
        shape = self.workload.tensors[kernel.writes[0]].shape
        return kernel.op.phase is Phase.UPDATE and kernel.op.kind is Kind.ELEMENTWISE and len(shape) > 0

    def _kernel(self, index: int, op: Op, writes: tuple[int, ...]) -> Kernel:
        leaves, inner, picked = self._upstream(index)
        body: tuple[Kernel, ...] = ()
        if op.body:
            body = tuple(kernels_of(self.workload, op.body, frozenset(op.results), self.profile, self.batch))
        op = next((self.graph.ops[i] for i in inner if i in self.epilogues.products), op)
        flops = self.graph.ops[index].flops + Affine.sum(self.graph.ops[i].flops for i in inner)
        in_place = self.rows.in_place(index, writes, self.exists) if "elementwise-in-place" in self.profile else ()
        return Kernel(op, tuple(leaves), writes, flops, 1 + len(inner), tuple(picked.items()), body, in_place)

    def _upstream(self, index: int) -> tuple[list[int], list[int], dict[int, int]]:
        """(tensors read from memory, operations fused in, tensors read in part) of the kernel that ends here."""
        leaves: dict[int, None] = {}
        inner: dict[int, None] = {}
        picked: dict[int, int] = {}
        whole: set[int] = set()
        pending = [index]
        while pending:
            op = self.graph.ops[at := pending.pop()]
            for read in self.reads[at]:
                if self.exists[read]:
                    leaves[read] = None
                    if op.primitive in _PICKS and read == self.graph.of(op.reads[0]):
                        picked[read] = op.writes[0]
                    else:
                        whole.add(read)
                elif (source := self.graph.producer[read]) not in inner:
                    inner[source] = None
                    pending.append(source)
        return list(leaves), list(inner), {read: made for read, made in picked.items() if read not in whole}

    def _must(self) -> set[int]:
        """Fusible values that exist whatever it costs."""
        graph = self.graph
        must = set(graph.fenced) | set(graph.outputs)
        must.update(op.writes[0] for op in graph.ops if op.primitive == RELAYOUT)
        for one in self.profile.materialized:
            must.update(one(self.workload, graph, self.batch))
        for tensor, readers in graph.readers.items():
            refusing = [reader for reader in readers if not self._takes_producers(graph.ops[reader], tensor)]
            if refusing and not ("gemm-operand-fusion" in self.profile and self._is_computed_by(refusing, tensor)):
                must.add(self._before_activation(tensor, refusing))
        return must

    def _before_activation(self, tensor: int, readers: Sequence[int]) -> int:
        """What is in memory of an activation that products read: what it is made of, where others read that, too.

        Products compute one cheap operation themselves, and the gradient of a ReLU asks for what came in.
        """
        source = self.graph.producer.get(tensor)
        if source is None or "gemm-operand-fusion" not in self.profile or not self._are_plain(readers):
            return tensor
        op = self.graph.ops[source]
        if op.primitive not in ("max", "min") or not self.fusible[source]:
            return tensor
        large = [read for read in self.reads[source] if not self._is_broadcast(read)]
        same = len(large) == 1 and self.workload.tensors[large[0]] == self.workload.tensors[tensor]
        return large[0] if same and len(self.graph.readers[large[0]]) > 1 else tensor

    def _is_computed_by(self, readers: Sequence[int], tensor: int) -> bool:
        """Whether all these readers are plain products, and the tensor a short chain of what is in memory anyway."""
        return self._are_plain(readers) and self._is_short_chain(tensor)

    def _are_plain(self, readers: Sequence[int]) -> bool:
        """Whether these are products of two matrices each."""
        ops = [self.graph.ops[reader] for reader in readers]
        return all(op.kind is Kind.DOT and bool(op.gemm) and op.gemm[0] == Affine(1) for op in ops)

    def _is_short_chain(self, tensor: int) -> bool:
        """Cheap arithmetic of one operand of that size and dtype, the others being broadcast from next to nothing."""
        like = self.workload.tensors[tensor]
        for _ in range(_SHORT_CHAIN):
            source = self.graph.producer.get(tensor)
            if source is None or not self.fusible[source]:
                return True
            op = self.graph.ops[source]
            if op.primitive not in _CHEAP or self.workload.tensors[tensor].dtype != like.dtype:
                return False
            large = [read for read in self.reads[source] if not self._is_broadcast(read)]
            if len(large) != 1:
                return False
            tensor = large[0]
        return False

    def _is_broadcast(self, tensor: int) -> bool:
        source = self.graph.producer.get(tensor)
        if source is not None and self.graph.ops[source].kind is Kind.BROADCAST:
            return True
        return self.size[tensor] <= self.small or not self.workload.tensors[tensor].shape

    def _takes_producers(self, op: Op, tensor: int) -> bool:
        if op.kind is Kind.SCATTER and "scatter-operand-fusion" in self.profile:
            return self.graph.of(op.reads[0]) != tensor  # what is scattered into is in memory
        if (
            op.kind is Kind.DOT
            and "gemm-epilogue" in self.profile
            and self.graph.reads_turned_stack(op, tensor, self.workload)
        ):
            return False
        if op.primitive == UNEVEN_PAD and len(op.writes) > 1:
            return False  # padded and put in another order by one kernel, which reads it in tiles
        return op.kind in self.profile.fusible or op.kind in self.profile.absorbing

    def _settle(self) -> None:
        """One pass of decisions in program order, with the readers that the last pass's decisions give."""
        users = self._users()
        self.exists = self._without_choice()
        leaves: dict[int, int] = {}
        dear: dict[int, int] = {}
        long: set[int] = set()
        product: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            if not self.fusible[index] or self.graph.is_view(index):
                continue
            below, tainted = 0, op.kind in _LONG_CHAINS
            arithmetic = 1 << index if self.arithmetic.weighs(op) else 0
            inside = self._one_product(index, product)
            for read in self.reads[index]:
                below |= 1 << read if self.exists[read] else leaves.get(read, 0)
                arithmetic |= 0 if self.exists[read] else dear.get(read, 0)
                tainted |= read in long
            for write in op.writes:
                if write not in self.must and (
                    not (write in self.epilogues.between or self.epilogues.goes_on(write))
                    if inside
                    else self._keep(write, below, users.get(write, 0), tainted, arithmetic)
                ):
                    self.exists[write] = True
                leaves[write] = below
                dear[write] = arithmetic
                if inside and not self.exists[write]:
                    product.add(write)
                if tainted and not self.exists[write]:
                    long.add(write)

    def _one_product(self, index: int, product: set[int]) -> bool:
        """Whether a product is in the chain that this operation ends; a second one is kept apart."""
        if index in self.epilogues.products:
            return True
        carried = [read for read in self.reads[index] if read in product and not self.exists[read]]
        for read in carried[1:]:
            own = self.epilogues.between.get(read)
            self.exists[read] = own is None or own != self.epilogues.between.get(carried[0])
        return bool(carried)

    def _keep(self, tensor: int, leaves: int, users: int, long: bool, dear: int) -> bool:
        readers = users.bit_count()
        direct = self.graph.readers.get(tensor, ())
        if readers < 2 or not leaves or (self._is_mask(tensor) and "comparison-masks" not in self.profile):
            return False
        if tensor in self.before_columns and (not self.narrow or self._made_of_narrow(tensor, leaves)):
            return True
        if len(direct) < 2 and (long or self._shrinks(tensor, direct)):
            return False  # better cut further down the chain
        if long and "long-chains" in self.profile:
            return True
        below = sum(self.size[leaf] for leaf in members(leaves))
        if below <= self.small:
            return False
        own_traffic = (1 + readers) * self.computed[tensor] + below
        extra = (readers - 1) * self.arithmetic.bytes_of(dear)
        if readers * below + extra <= own_traffic:
            return False
        for reader in members(users):
            extra += sum(self.size[leaf] for leaf in members(leaves & ~self._leaves_without(reader, tensor)))
            if extra > own_traffic:
                return True
        return False

    def _is_mask(self, tensor: int) -> bool:
        op = self.graph.ops[self.graph.producer[tensor]]
        return op.phase is Phase.FORWARD and self.workload.tensors[tensor].dtype == "bool"

    def _made_of_narrow(self, tensor: int, leaves: int) -> bool:
        """Whether this is float32 and made of as many narrow values."""
        made = self.workload.tensors[tensor]
        if made.dtype != "float32":
            return False
        narrow = (leaf for leaf in members(leaves) if self.workload.tensors[leaf].item_bytes < made.item_bytes)
        return sum(self.size[leaf] for leaf in narrow) >= _NARROW_SHARE * self.size[tensor]

    def _shrinks(self, tensor: int, readers: Sequence[int]) -> bool:
        """Whether the one operation that reads this makes less of it."""
        return any(
            self.size[write] < self.size[tensor] for reader in readers for write in self.graph.ops[reader].writes
        )

    def _leaves_without(self, reader: int, tensor: int) -> int:
        """The tensors that this kernel reads even if `tensor` is handed to it."""
        found, seen, pending = 0, {reader}, [reader]
        while pending and len(seen) < _MAX_VISITS:
            for read in self.reads[pending.pop()]:
                if read == tensor:
                    continue
                if self.exists[read]:
                    found |= 1 << read
                elif (source := self.graph.producer[read]) not in seen:
                    seen.add(source)
                    pending.append(source)
        return found

    def _users(self) -> dict[int, int]:
        """For each tensor, the kernels (by their last operation) that read it, directly or through fused operations."""
        users: dict[int, int] = {}
        through: dict[int, int] = {}
        for index in range(len(self.graph.ops) - 1, -1, -1):
            op = self.graph.ops[index]
            if self.graph.is_view(index):
                continue
            ends = 0
            for write in op.writes:
                ends |= 1 << index if self.exists[write] else users.get(write, 0)
            through[index] = ends
            for read in self.reads[index]:
                users[read] = users.get(read, 0) | ends
        return users


@rule("priority-fusion", source="PriorityFusion of XLA:GPU; programs compiled for TPUs")
def kernels_of(
    workload: Workload, ops: Sequence[Op], outputs: frozenset[int], profile: Profile, batch: int
) -> list[Kernel]:
    """Return the kernels of these operations in program order; `outputs` exist whatever it costs."""
    found: list[Kernel] = Fusion(workload, Graph(ops, outputs, profile), batch).kernels()
    return found


@rule("gemm-operand-fusion", source="GemmFusion of XLA:GPU: Triton products from Ampere on")
def gemm_operand_fusion(fusion: Fusion, readers: Sequence[int], tensor: int) -> bool:
    """Return whether products compute a short elementwise chain of one operand themselves."""
    return fusion._is_computed_by(readers, tensor)


@rule("scatter-operand-fusion", source="programs compiled for A100")
def scatter_operand_fusion(graph: Graph, op: Op, tensor: int) -> bool:
    """Return whether a scatter computes what it adds itself; what is scattered into is in memory."""
    return graph.of(op.reads[0]) != tensor


@rule("comparison-masks", source="programs compiled for A100")
def comparison_masks(tensor: Tensor) -> bool:
    """Return whether a comparison of the forward pass may be kept for the backward pass where it is smaller."""
    return tensor.dtype == "bool"


@rule("long-chains", source="programs compiled for A100: random bits, erfc")
def long_chains(op: Op) -> bool:
    """Return whether an operation is computed once when several kernels read it."""
    return op.kind in _LONG_CHAINS


def _together(one: Kernel, other: Kernel) -> Kernel:
    """Two kernels as one launch: what the first writes, the second need not read."""
    reads = dict.fromkeys((*one.reads, *(read for read in other.reads if read not in one.writes)))
    return replace(
        one,
        reads=tuple(reads),
        writes=(*one.writes, *other.writes),
        flops=one.flops + other.flops,
        fused=one.fused + other.fused,
        picked=(*one.picked, *other.picked),
    )


def in_update(kernel: Kernel) -> bool:
    """Whether the kernel belongs to the optimizer and the metrics."""
    return kernel.op.phase is Phase.UPDATE
