"""Builds the dataflow graph of operations (producer and readers of each tensor), with graph functions for rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from cost_models.workload.workload import CONVERT, ITEM_BYTES, UNEVEN_PAD, Kind, Op, Workload
from cost_models.xla.profile import Profile

WIDE = "float32"
HALVES = frozenset({"bfloat16", "float16"})
PADS = frozenset({"pad", UNEVEN_PAD})
READS_PART = frozenset({"gather", "slice", "dynamic_slice"})
"""Primitives that read no more of their first operand than they write."""
ONE_BY_ONE = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE})
"""Kinds that work element by element."""
MATRIX_RANK = 2
ZEROS_FOR_POOLING = "zeros for pooling"
"""The layer name of the zeros that gradients of pooling are scattered into, and of their copies."""
LONG_CHAIN = 5
"""Multiply-adds an element of a polynomial of 16 terms: GELU with erfc takes 400 ps longer than a copy on two cores."""
_TAKES_PADDING = frozenset({Kind.CONV, Kind.POOL})
_HALF_BYTES = 2


@dataclass
class Graph:
    """The operations of one body with names resolved: views and barriers stand for their sources.

    root      the tensor that a view names
    producer  the index of the operation that makes a tensor
    readers   the indices of the operations that read a tensor
    fenced    tensors that go through a barrier
    """

    ops: Sequence[Op]
    outputs: frozenset[int]
    profile: Profile
    root: dict[int, int] = field(default_factory=dict)
    producer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        padding = self._absorbed_padding()
        for index, op in enumerate(self.ops):
            if op.kind is Kind.BARRIER:
                self._rename(op.writes, op.reads)
                self.fenced.update(self.of(read) for read in op.reads)
            elif op.reads and (op.kind is Kind.VIEW or index in padding or self._is_free_transpose(op)):
                self._rename(op.writes, op.reads[:1])
            else:
                self.producer.update(dict.fromkeys(op.writes, index))
                for read in dict.fromkeys(map(self.of, op.reads)):
                    self.readers.setdefault(read, []).append(index)
        self.outputs = frozenset(self.of(end) for end in self.outputs)

    @cached_property
    def reads(self) -> list[tuple[int, ...]]:
        """The tensors that each operation reads, views resolved, each named once."""
        return [tuple(dict.fromkeys(map(self.of, op.reads))) for op in self.ops]

    @cached_property
    def ancestors(self) -> list[int]:
        """The operations that each operation depends on, as bit sets."""
        return ancestors((reads, op.writes) for reads, op in zip(self.reads, self.ops, strict=True))

    def of(self, tensor: int) -> int:
        """Return the tensor whose memory this tensor names."""
        return self.root.get(tensor, tensor)

    def maker(self, tensor: int) -> Op | None:
        """Return the operation that makes a tensor, None for tensors from outside."""
        index = self.producer.get(self.of(tensor))
        return None if index is None else self.ops[index]

    def is_broadcast(self, tensor: int) -> bool:
        """Return whether a broadcast makes a tensor."""
        maker = self.maker(tensor)
        return maker is not None and maker.kind is Kind.BROADCAST

    def is_view(self, index: int) -> bool:
        """Return whether an operation makes no tensor of its own."""
        return all(write not in self.producer for write in self.ops[index].writes)

    def reads_transposed_stack(self, op: Op, tensor: int, workload: Workload) -> bool:
        """Return whether an operation reads, beside this tensor, the transposed stack of a loop's results.

        XLA:TPU makes the transposition part of a product, which then computes no operand itself.
        """
        transposed = (
            source
            for read in op.reads
            if (source := self.of(read)) != tensor
            if workload.tensors[read].shape != workload.tensors[source].shape
        )
        makers = (self.maker(source) for source in transposed)
        return any(maker is not None and maker.kind is Kind.LOOP for maker in makers)

    def _rename(self, writes: Sequence[int], reads: Sequence[int]) -> None:
        for write, read in zip(writes, reads, strict=False):
            self.root[write] = self.of(read)

    def _is_free_transpose(self, op: Op) -> bool:
        return op.primitive == "transpose" and op.primitive in self.profile.free_moves

    def _absorbed_padding(self) -> set[int]:
        """Return the pads that only convolutions and pooling read: these pad by themselves."""
        free = self.profile.free_moves & PADS
        pads = {op.writes[0]: index for index, op in enumerate(self.ops) if op.primitive in free}
        for op in self.ops:
            for read in op.reads if op.kind not in _TAKES_PADDING else ():
                pads.pop(read, None)
        return set(pads.values())


def ancestors(nodes: Iterable[tuple[Iterable[int], Iterable[int]]]) -> list[int]:
    """Return the nodes that each node depends on, as bit sets of indices.

    nodes  (tensors read, tensors written) of each, in program order
    """
    maker: dict[int, int] = {}
    found: list[int] = []
    for index, (reads, writes) in enumerate(nodes):
        mask = 0
        for read in reads:
            if read in maker:
                mask |= found[maker[read]] | 1 << maker[read]
        found.append(mask)
        maker.update(dict.fromkeys(writes, index))
    return found


def members(mask: int) -> Iterator[int]:
    """Yield the numbers in a bit set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def connected_groups(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """Return the group of each of `count` items, named by one of its members; links join two items (union-find)."""
    parent = list(range(count))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for one, other in links:
        parent[root(other)] = root(one)
    return [root(item) for item in range(count)]


def chain_of_names(tensor: int, renamed: dict[int, int]) -> Iterator[int]:
    """Yield a tensor, the tensor that it renames, and so on."""
    yield tensor
    while tensor in renamed:
        tensor = renamed[tensor]
        yield tensor


def is_part_of_convolution(op: Op) -> bool:
    """Return whether an operation is a convolution's own padding: it has no operand for the value to pad with."""
    return op.primitive in PADS and len(op.reads) == 1


@lru_cache(maxsize=64)
def is_narrow(workload: Workload) -> bool:
    """Return whether a step computes in half precision."""
    return any(ITEM_BYTES.get(tensor.dtype, 0) == _HALF_BYTES for tensor in workload.tensors)


def before_conversions(graph: Graph, tensor: int) -> Op | None:
    """Return the operation that makes a tensor, conversions aside."""
    maker = graph.maker(tensor)
    while maker is not None and maker.primitive == CONVERT:
        maker = graph.maker(maker.reads[0])
    return maker
