"""Who makes and who reads each tensor of a body of operations, as a compiler sees it: views are what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost_models.workload.workload import UNEVEN_PAD, Kind, Op, Workload
from cost_models.xla.target import Target

_TAKES_PADDING = frozenset({Kind.CONV, Kind.POOL})


@dataclass(slots=True)
class Graph:
    """The operations of one body with names resolved: views and fences are their sources."""

    ops: Sequence[Op]
    outputs: frozenset[int]
    target: Target
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
        return op.primitive == "transpose" and self.target.free_transposes

    def _absorbed_padding(self) -> set[int]:
        """Pads that only convolutions and pooling read: these pad by themselves."""
        if not self.target.fusible:
            return set()
        taken = ("pad", UNEVEN_PAD) if self.target.pads_unevenly else ("pad",)
        pads = {op.writes[0]: index for index, op in enumerate(self.ops) if op.primitive in taken}
        for op in self.ops:
            for read in op.reads if op.kind not in _TAKES_PADDING else ():
                pads.pop(read, None)
        return set(pads.values())
