"""Rewrites calls that XLA cannot split over devices: each device gathers the whole batch and computes all of it.

cuDNN's LSTM is such a call. In a step that is compiled for two A100s, both run it on the global batch, behind an
all-gather of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Tensor, Workload

GATHERED = "all_gather"
"""Primitive of the copy of a tensor of all devices."""


@lru_cache(maxsize=64)
def on_whole_batch(workload: Workload, devices: int) -> Workload:
    """Return the step of one of several devices, in which an LSTM in one call is of the batches of all of them.

    Its inputs are gathered; what it writes has the rows of all devices. Where sizes hold at one batch alone, they stay
    as they are.
    """
    if devices == 1 or all(op.kind is not Kind.LSTM for op in workload.ops):
        return workload
    rewrite = _Rewrite(list(workload.tensors), devices)
    rewrite.made_by = {write: op for op in workload.ops for write in op.writes}
    ops = [one for op in workload.ops for one in (rewrite.call(op) if op.kind is Kind.LSTM else (op,))]
    return replace(workload, tensors=tuple(rewrite.tensors), ops=tuple(ops))


def gathered_bytes(workload: Workload, batch: int) -> tuple[int, ...]:
    """Return the bytes of all devices that each gathering brings to a device, at a local batch."""
    found = (op.writes[0] for op in workload.ops if op.kind is Kind.COPY and op.primitive == GATHERED)
    return tuple(round(workload.sizes[end].at(batch)) for end in found)


@dataclass
class _Rewrite:
    """The tensors of a step that is rewritten for some devices, and what was gathered already."""

    tensors: list[Tensor]
    devices: int
    made_by: dict[int, Op] = field(default_factory=dict)
    gathered: dict[int, int] = field(default_factory=dict)

    def call(self, op: Op) -> Iterator[Op]:
        """Yield the gatherings that a call needs, and the call on the rows of all devices."""
        reads = []
        for read in op.reads:
            if read not in self.gathered and self._is_local(read):
                self.tensors.append(self._of_all(self.tensors[read]))
                self.gathered[read] = len(self.tensors) - 1
                writes = (self.gathered[read],)
                yield Op(Kind.COPY, GATHERED, (read,), writes, phase=op.phase, layer=op.layer, region=op.region)
            reads.append(self.gathered.get(read, read))
        for write in op.writes:
            self.tensors[write] = self._of_all(self.tensors[write])
        gemm = tuple(map(self._rows, op.gemm))
        yield replace(op, reads=tuple(reads), gemm=gemm, flops=self._rows(op.flops))

    def _is_local(self, tensor: int) -> bool:
        """Whether a device has only its own rows of a tensor: no such call made it, nor a broadcast."""
        maker = self.made_by.get(tensor)
        made_whole = maker is not None and maker.kind in (Kind.LSTM, Kind.BROADCAST)
        return not made_whole and any(not dim.constant for dim in self.tensors[tensor].shape)

    def _of_all(self, tensor: Tensor) -> Tensor:
        return Tensor(tensor.dtype, tuple(map(self._rows, tensor.shape)))

    def _rows(self, size: Affine) -> Affine:
        return Affine(size.fixed, size.per_sample * self.devices)
