"""Models XLA's priority fusion on GPUs and TPUs: decides which values are written to memory, and returns kernels.

XLA runs many elementwise operations as one kernel that reads its inputs once and writes its result once. A value
inside a kernel never reaches memory. The rules here follow the behaviour of XLA, not its code:

- Products, convolutions, windows, reductions, scatters, sorts and loops always write their results.
- Everything else is fusible. It is written where it leaves the step, where its reader cannot compute operands itself,
  where it crosses the border of a rematerialized region, or where writing it is cheaper than computing it again in
  each of its readers.

Sets of operations and tensors are Python integers used as bit sets: steps have thousands of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Workload
from cost_models.xla.dataflow import READS_PART, Graph, is_narrow, members
from cost_models.xla.fusion.column_reduction import ColumnInputs
from cost_models.xla.fusion.gemm_epilogue import Epilogues
from cost_models.xla.fusion.kernel import Kernel, join_updates
from cost_models.xla.fusion.recompute_cost import Arithmetic, as_computed
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_LONG_CHAINS = frozenset({Kind.EXPENSIVE, Kind.RANDOM})
_NARROW_SHARE = 0.4  # of a float32 value's bytes: as many narrow elements are a half
_SMALL_SHARE = 1e-5  # of the largest tensor: reading less than that again is not worth a decision
_MAX_VISITS = 64  # operations visited upstream of one reader before giving up: fused groups are smaller
_SETTLING_PASSES = 2  # readers depend on what is written and the other way round: two passes settle it


@rule("priority-fusion", source="PriorityFusion of XLA:GPU; programs compiled for TPUs")
def priority_fusion(
    workload: Workload, ops: Sequence[Op], outputs: frozenset[int], profile: Profile, batch: int
) -> list[Kernel]:
    """Return the kernels of these operations in program order; `outputs` are written whatever it costs."""
    return Fusion(workload, Graph(ops, outputs, profile), batch).kernels()


@dataclass(slots=True)
class _Chain:
    """The fused operations that lead to a tensor.

    leaves   tensors that they read from memory (bit set)
    costly   operations among them whose arithmetic counts (bit set)
    long     a long chain is among them
    product  a product is among them, whose kernel goes on
    """

    leaves: int = 0
    costly: int = 0
    long: bool = False
    product: bool = False


@rule("long-chains", source="programs compiled for A100: random bits, erfc")
def long_chains(chain: _Chain) -> bool:
    """Return whether a chain is computed once when several kernels read its result."""
    return chain.long


def _never(*_: Any) -> bool:
    return False


class Fusion:
    """Decides which fusible values are written, then names the kernels."""

    def __init__(self, workload: Workload, graph: Graph, batch: int) -> None:
        self.graph, self.workload, self.batch = graph, workload, batch
        self.profile = graph.profile
        self.size = [size.at(batch) for size in workload.sizes]
        self.computed = as_computed(workload, graph, self.size)
        self.arithmetic: Arithmetic = self._rule("recompute-cost", Arithmetic)(workload, graph, batch)
        self.keeps_long = self._rule("long-chains", _never)
        self.narrow = is_narrow(workload)
        self.small = _SMALL_SHARE * max(self.size, default=0.0)
        self.fusible = [op.kind in self.profile.fusible for op in graph.ops]
        self.must = self._must_exist()
        self.epilogues: Epilogues = self._rule("gemm-epilogue", Epilogues)(workload, graph, self.size, self.must)
        for index in self.epilogues.products:
            self.fusible[index] = True
        self.before_columns = ColumnInputs(workload, graph, batch, self.fusible).written()
        self.exists = self._without_choice()
        for _ in range(_SETTLING_PASSES):
            self._settle()

    def _rule(self, name: str, other: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rule of the profile, the other callable if the rule is off."""
        return self.profile.rules.get(name, other)

    def kernels(self) -> list[Kernel]:
        """Return the kernels in program order."""
        in_place = self._rule("elementwise-in-place", lambda *_: None)(self.workload, self.graph, self.batch)
        found: list[Kernel] = []
        for index, op in enumerate(self.graph.ops):
            writes = tuple(write for write in op.writes if write in self.graph.producer and self.exists[write])
            if writes:
                reused = in_place.operands(index, writes, self.exists) if in_place else ()
                found.append(self._kernel(index, op, writes, reused))
        return join_updates(self.workload, found) if self.profile.fusible else found

    def _kernel(self, index: int, op: Op, writes: tuple[int, ...], in_place: tuple[int, ...]) -> Kernel:
        leaves, inner, picked = self._upstream(index)
        body: tuple[Kernel, ...] = ()
        if op.body:
            body = tuple(priority_fusion(self.workload, op.body, frozenset(op.results), self.profile, self.batch))
        op = next((self.graph.ops[i] for i in inner if i in self.epilogues.products), op)
        flops = self.graph.ops[index].flops + Affine.sum(self.graph.ops[i].flops for i in inner)
        return Kernel(op, tuple(leaves), writes, flops, 1 + len(inner), tuple(picked.items()), body, in_place)

    def _upstream(self, index: int) -> tuple[list[int], list[int], dict[int, int]]:
        """Return (tensors read from memory, operations fused in, tensors read in part) of a kernel, by its last op."""
        leaves: dict[int, None] = {}
        inner: dict[int, None] = {}
        picked: dict[int, int] = {}
        whole: set[int] = set()
        pending = [index]
        while pending:
            op = self.graph.ops[at := pending.pop()]
            for read in self.graph.reads[at]:
                if self.exists[read]:
                    leaves[read] = None
                    if op.primitive in READS_PART and read == self.graph.of(op.reads[0]):
                        picked[read] = op.writes[0]
                    else:
                        whole.add(read)
                elif (source := self.graph.producer[read]) not in inner:
                    inner[source] = None
                    pending.append(source)
        return list(leaves), list(inner), {read: made for read, made in picked.items() if read not in whole}

    def _must_exist(self) -> set[int]:
        """Return the fusible values that are written whatever it costs."""
        graph = self.graph
        must = set(graph.fenced) | set(graph.outputs)
        for one in self.profile.materialized:
            must.update(one(self.workload, graph, self.batch))
        must.update(self._operands_in_memory())
        return must

    def _operands_in_memory(self) -> Iterator[int]:
        """Yield the tensors that are read by operations which do not compute operands themselves."""
        for tensor, readers in self.graph.readers.items():
            if not all(self._computes_operand(self.graph.ops[reader], tensor) for reader in readers):
                yield tensor

    def _computes_operand(self, op: Op, tensor: int) -> bool:
        transposes = op.kind is Kind.DOT and "gemm-epilogue" in self.profile
        if transposes and self.graph.reads_transposed_stack(op, tensor, self.workload):
            return False
        return op.kind in self.profile.fusible or op.kind in self.profile.absorbing

    def _without_choice(self) -> bytearray:
        """Return flags by tensor: whether it is in memory at some time, as far as nothing has to be decided."""
        flags = bytearray(b"\1") * len(self.size)
        for tensor, index in self.graph.producer.items():
            flags[tensor] = tensor in self.must or not self.fusible[index]
        return flags

    def _settle(self) -> None:
        """Decide in program order, with the readers that follow from the decisions of the pass before."""
        users = self._users()
        self.exists = self._without_choice()
        chains: dict[int, _Chain] = {}
        for index, op in enumerate(self.graph.ops):
            if not self.fusible[index] or self.graph.is_view(index):
                continue
            chain = self._chain_to(index, chains)
            for write in op.writes:
                if write not in self.must and self._is_written(write, chain, users.get(write, 0)):
                    self.exists[write] = True
                inside = not self.exists[write]
                chains[write] = _Chain(chain.leaves, chain.costly, chain.long and inside, chain.product and inside)

    def _chain_to(self, index: int, chains: dict[int, _Chain]) -> _Chain:
        """Return the chain that an operation ends, together with the chains of the operands that it computes."""
        op = self.graph.ops[index]
        product = self._has_one_product(index, chains)
        costly = 1 << index if self.arithmetic.weighs(op) else 0
        chain = _Chain(costly=costly, long=op.kind in _LONG_CHAINS, product=product)
        for read in self.graph.reads[index]:
            above = chains.get(read)
            if self.exists[read]:
                chain.leaves |= 1 << read
            elif above is not None:
                chain.leaves |= above.leaves
                chain.costly |= above.costly
            chain.long |= above is not None and above.long
        return chain

    def _has_one_product(self, index: int, chains: dict[int, _Chain]) -> bool:
        """Return whether a product is in the chain that an operation ends; the result of a second one is written."""
        if index in self.epilogues.products:
            return True
        reads = (read for read in self.graph.reads[index] if read in chains)
        carried = [read for read in reads if chains[read].product and not self.exists[read]]
        for read in carried[1:]:
            own = self.epilogues.between.get(read)
            self.exists[read] = own is None or own != self.epilogues.between.get(carried[0])
        return bool(carried)

    def _is_written(self, tensor: int, chain: _Chain, users: int) -> bool:
        """Return whether a fusible value is written, rather than computed again by each kernel that reads it."""
        if chain.product:
            return not (tensor in self.epilogues.between or self.epilogues.goes_on(tensor))
        if users.bit_count() < 2 or not chain.leaves:
            return False
        if tensor in self.before_columns and (not self.narrow or self._is_made_of_narrow(tensor, chain)):
            return True
        if self._is_better_written_later(tensor, chain):
            return False
        return self.keeps_long(chain) or self._saves_traffic(tensor, chain, users)

    def _is_made_of_narrow(self, tensor: int, chain: _Chain) -> bool:
        """Return whether a tensor is float32 and made of as many narrow values."""
        made = self.workload.tensors[tensor]
        if made.dtype != "float32":
            return False
        narrow = (leaf for leaf in members(chain.leaves) if self.workload.tensors[leaf].item_bytes < made.item_bytes)
        return sum(self.size[leaf] for leaf in narrow) >= _NARROW_SHARE * self.size[tensor]

    def _is_better_written_later(self, tensor: int, chain: _Chain) -> bool:
        """Return whether one operation reads a tensor and goes on with a long chain or makes less of it."""
        direct = self.graph.readers.get(tensor, ())
        made = (write for reader in direct for write in self.graph.ops[reader].writes)
        return len(direct) < 2 and (chain.long or any(self.size[write] < self.size[tensor] for write in made))

    def _saves_traffic(self, tensor: int, chain: _Chain, users: int) -> bool:
        """Return whether writing a value moves fewer bytes than reading its leaves in each of its readers.

        Arithmetic counts as the bytes that could be moved meanwhile.
        """
        readers = users.bit_count()
        below = sum(self.size[leaf] for leaf in members(chain.leaves))
        if below <= self.small:
            return False
        own_traffic = (1 + readers) * self.computed[tensor] + below
        again = (readers - 1) * self.arithmetic.bytes_of(chain.costly)
        if readers * below + again <= own_traffic:
            return False
        for reader in members(users):
            left = chain.leaves & ~self._leaves_without(reader, tensor)
            again += sum(self.size[leaf] for leaf in members(left))
            if again > own_traffic:
                return True
        return False

    def _leaves_without(self, reader: int, tensor: int) -> int:
        """Return the tensors that a kernel reads even if `tensor` is in memory, as a bit set."""
        found, seen, pending = 0, {reader}, [reader]
        while pending and len(seen) < _MAX_VISITS:
            for read in self.graph.reads[pending.pop()]:
                if read == tensor:
                    continue
                if self.exists[read]:
                    found |= 1 << read
                elif (source := self.graph.producer[read]) not in seen:
                    seen.add(source)
                    pending.append(source)
        return found

    def _users(self) -> dict[int, int]:
        """Return the kernels (by their last operation) that read each tensor, directly or through fused operations."""
        users: dict[int, int] = {}
        for index in range(len(self.graph.ops) - 1, -1, -1):
            op = self.graph.ops[index]
            if self.graph.is_view(index):
                continue
            ends = 0
            for write in op.writes:
                ends |= 1 << index if self.exists[write] else users.get(write, 0)
            for read in self.graph.reads[index]:
                users[read] = users.get(read, 0) | ends
        return users
