"""Who makes and who reads each tensor of a body of operations, as a compiler sees it: views are what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cost_models.workload.workload import ITEM_BYTES, UNEVEN_PAD, Kind, Op, Workload
from cost_models.xla.profile import Profile

WIDE = "float32"
ZEROS_FOR_POOLING = "zeros for pooling"
"""The layer name of the zeros that gradients of pooling are scattered into, and of their copies."""
LONG_CHAIN = 5
"""Multiply-adds an element of a polynomial of 16 terms: GELU with erfc takes 400 ps longer than a copy on two cores."""
MOST_SAMPLES = 32
"""Bits of a word: up to so many samples XLA:TPU packs signs of ReLUs (16 and 32 samples were packed, 64 were not)."""
_TAKES_PADDING = frozenset({Kind.CONV, Kind.POOL})
_HALF_BYTES = 2
_PADS = ("pad", UNEVEN_PAD)


def is_part_of_convolution(op: Op) -> bool:
    """Return whether an operation is a convolution's own padding: it has no operand for the value to pad with."""
    return op.primitive in _PADS and len(op.reads) == 1


@lru_cache(maxsize=64)
def is_narrow(workload: Workload) -> bool:
    """Return whether a step computes in half precision."""
    return any(ITEM_BYTES.get(tensor.dtype, 0) == _HALF_BYTES for tensor in workload.tensors)


def packed_batch(workload: Workload, profile: Profile, batch: int) -> int | None:
    """Return a batch on the same side of `MOST_SAMPLES`, None if that of the trace is."""
    if (workload.local_batch <= MOST_SAMPLES) == (batch <= MOST_SAMPLES):
        return None
    return MOST_SAMPLES if batch <= MOST_SAMPLES else 2 * MOST_SAMPLES


@dataclass(slots=True)
class Graph:
    """The operations of one body with names resolved: views and fences are their sources."""

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
            elif op.reads and (op.kind is Kind.VIEW or index in padding or self._free_transpose(op)):
                self._rename(op.writes, op.reads[:1])
            else:
                self.producer.update(dict.fromkeys(op.writes, index))
                for read in dict.fromkeys(map(self.of, op.reads)):
                    self.readers.setdefault(read, []).append(index)
        self.outputs = frozenset(self.of(end) for end in self.outputs)

    def of(self, tensor: int) -> int:
        """The tensor whose memory this one names."""
        return self.root.get(tensor, tensor)

    def is_view(self, index: int) -> bool:
        return all(write not in self.producer for write in self.ops[index].writes)

    def reads_turned_stack(self, op: Op, tensor: int, workload: Workload) -> bool:
        """Whether an operation reads, beside this tensor, what a loop stacked up, with its dimensions in another order.

        XLA:TPU makes the order part of a product, which then takes nothing in.
        """
        turned = (
            source
            for read in op.reads
            if (source := self.of(read)) != tensor
            if workload.tensors[read].shape != workload.tensors[source].shape
        )
        return any(source in self.producer and self.ops[self.producer[source]].kind is Kind.LOOP for source in turned)

    def _rename(self, writes: Sequence[int], reads: Sequence[int]) -> None:
        for write, read in zip(writes, reads, strict=False):
            self.root[write] = self.of(read)

    def _free_transpose(self, op: Op) -> bool:
        return op.primitive == "transpose" and op.primitive in self.profile.free_moves

    def _absorbed_padding(self) -> set[int]:
        """Pads that only convolutions and pooling read: these pad by themselves."""
        taken = self.profile.free_moves.intersection(_PADS)
        pads = {op.writes[0]: index for index, op in enumerate(self.ops) if op.primitive in taken}
        for op in self.ops:
            for read in op.reads if op.kind not in _TAKES_PADDING else ():
                pads.pop(read, None)
        return set(pads.values())
